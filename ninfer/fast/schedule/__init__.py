"""Who executes and in what order.

``scheduler.py`` decides the next unit from the waiting and resident requests; it owns order, pauses
and who gives way to whom, knows no memory and computes nothing.
"""
