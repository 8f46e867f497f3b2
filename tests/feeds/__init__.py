"""Tests of the engine event feeds."""
