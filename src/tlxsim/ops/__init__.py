"""Operations of the IR, one module per theme; importing a module registers its operations."""
