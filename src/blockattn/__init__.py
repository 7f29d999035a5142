"""Block-diagonal attention for jagged batches.

`block_attention` and `block_attention_packed` attend, `TileTable` shares a batch's tiles between layers, and `RotaryTable`
holds the angles of rotary embedding. Importing this needs no GPU and imports neither triton nor a GPU driver.
"""

from .api import block_attention, block_attention_packed
from .rotary import RotaryTable
from .tiles import TileTable

__all__ = ["RotaryTable", "TileTable", "block_attention", "block_attention_packed"]
__version__ = "0.1.0"
