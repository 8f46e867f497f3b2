"""kvlanes as a program embeds it."""
