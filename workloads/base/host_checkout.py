"""What git has checked out in a directory: ours, or somebody else's that the user names."""

import dataclasses
import os
import subprocess
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Revision:
    """What is checked out: `commit` is None where nothing tells it.

    changed: the files that differ from the commit, of those that git tracks.
    """

    commit: str | None = None
    changed: tuple[str, ...] = ()

    def __str__(self) -> str:
        return (self.commit or "unknown") + ("-dirty" if self.changed else "")

    @property
    def changes(self) -> str:
        """Words behind a commit: ', with local changes to a.py, b.py', '' where nothing differs."""
        shown = ", ".join(self.changed[:5]) + (", …" if self.changed[5:] else "")
        return f", with local changes to {shown}" if self.changed else ""


def revision(directory: Path) -> Revision:
    """Returns what git has checked out in `directory`, the top of a checkout."""
    if not (directory / ".git").exists():
        return Revision()
    # Inside a hook of git's, variables of its own name another repository.
    environment = {name: os.environ[name] for name in os.environ if not name.startswith("GIT_")}

    def git(*arguments: str) -> str:
        # Without it git answers nothing about a directory of another user, as containers mount it.
        command = ["git", "-C", str(directory), "-c", f"safe.directory={directory}", *arguments]
        done = subprocess.run(command, capture_output=True, check=True, env=environment)
        return done.stdout.decode(errors="replace")

    try:
        # `diff` would write a refreshed index into the checkout. Between entries NUL: other names
        # are quoted.
        flags = ("--porcelain", "-z", "--untracked-files=no", "--no-renames")
        entries = git("--no-optional-locks", "status", *flags).split("\0")
        changed = tuple(entry[3:] for entry in entries if entry)
        return Revision(git("rev-parse", "HEAD").strip(), changed)
    except (OSError, subprocess.CalledProcessError):
        return Revision()
