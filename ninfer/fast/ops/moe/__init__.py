"""Mixture of experts: routing by the float32 softmax, routed products, and the weighted sum with the
shared one.
"""
