"""Block-diagonal attention for jagged batches: `block_attention`, and `TileTable` to share a batch's tiles.

Importing it needs no GPU and imports neither triton nor a GPU driver.
"""

from .api import block_attention
from .tiles import TileTable

__all__ = ["TileTable", "block_attention"]
__version__ = "0.1.0"
