"""TLX kernels that tests, mutation and the comparison with hardware share; they import neither pytest nor tlxsim.

A module holds small kernels for one kind of hazard, with constexpr switches, as `Hazard`s; what the simulator should say of
each combination stands in the test of the same name.
"""
