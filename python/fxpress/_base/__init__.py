"""What every part uses, without torch: errors, arguments, progress, events.

Read `errors`, `arguments`, then `observing`. `replacement`, `interpreter` and `frame_space` serve
the parts that change objects of others; `pictures` draws.
"""
