"""Create split callbacks for `split_module`, and draw split modules; torch has no counterpart::

    from fxpress.partition import around, balanced, by_module, draw
    from fxpress.split_module import split_module

    stages = split_module(m, None, balanced(m, 4))
    layers = split_module(m, None, by_module(m, path="model.layers.*"))
    pieces = split_module(
        m, None, around(m, ["aten::scaled_dot_product_attention"]), keep_original_order=True
    )
    draw(stages).render("stages")

Each callback numbers partitions 0, 1, 2, … in graph order and cuts the graph into contiguous runs.
Values therefore only flow to higher partition numbers, and partitions have no cycles. The numbers
never decrease, as `split_module` requires for graphs with regions of autocast or grad mode.
"""

from fxpress._graphs.partition.around import around
from fxpress._graphs.partition.balanced import balanced
from fxpress._graphs.partition.by_module import by_module
from fxpress._graphs.partition.callback import SplitCallback
from fxpress._graphs.partition.draw import draw

__all__ = ["SplitCallback", "around", "balanced", "by_module", "draw"]
