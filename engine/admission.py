"""AdmissionEstimate: how many tokens a sequence will probably come to hold.

Admission that counts on the worst case (prompt and all of max_tokens) never preempts but leaves
blocks idle when answers end early. This estimate starts there and follows the measured share of
max_tokens that answers really used. Being wrong costs a preemption, never a failure. Must not know
the pool.
"""

from math import ceil

from engine.sequence import Sequence

# Weight of one finished sequence in the running mean, and what is added for the spread around it.
_WEIGHT = 0.05
_MARGIN = 0.15


class AdmissionEstimate:
    """The expected share of max_tokens; fixed when given, else measured from finished sequences."""

    def __init__(self, fixed_share: float | None = None) -> None:
        self._is_fixed = fixed_share is not None
        self._mean_share = 1.0 if fixed_share is None else fixed_share

    @property
    def share(self) -> float:
        """Return the part of max_tokens that admission counts on."""
        return self._mean_share if self._is_fixed else min(1.0, self._mean_share + _MARGIN)

    def expected_tokens(self, sequence: Sequence) -> int:
        """Count the tokens the sequence will hold at its end, as far as one can tell.

        Never fewer than it has.
        """
        remaining = sequence.max_known - sequence.num_known
        return sequence.num_known + ceil(self.share * remaining)

    def observe(self, sequence: Sequence) -> None:
        """Learn from a sequence that ended."""
        if not self._is_fixed:
            used = sequence.num_output / sequence.sampling.max_tokens
            self._mean_share += _WEIGHT * (used - self._mean_share)
