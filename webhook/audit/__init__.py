"""The record of decisions: written before an answer is sent, chained, and readable years later (DESIGN 5.5)."""
