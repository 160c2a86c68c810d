"""Code that all components use: errors, checks of arguments, progress, events.

Read `errors`, `arguments`, then `observing`. `replacement` patches functions of torch,
`interpreter` depends on the release of CPython, `frame_space` speeds up deep calls, and `pictures`
renders drawings.
"""
