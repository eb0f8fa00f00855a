"""Who executes and in what order.

``scheduler.py`` decides the next unit from the waiting and resident requests; it owns order and permits,
knows page counts only as numbers and computes nothing.
"""
