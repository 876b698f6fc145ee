"""The one exception for what a user can put right: bad files, bad settings, no space.

Its message is a whole sentence that names the place and the remedy; the command line prints it and exits with 2.
"""


class UserError(ValueError):
    """Something outside the program is wrong, and the message says what to do about it."""
