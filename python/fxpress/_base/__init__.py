"""Base package of all components: errors, checks of arguments, progress, events.

Read `errors`, `arguments`, then `observing`. `replacement`, `interpreter` and `frame_space` are for
components that patch torch or Python; `pictures` renders drawings.
"""
