"""What is measured of a cluster by reading it: `viewstamp top` and the console show the same."""

from viewstamp.metering.group_lags import GroupLag, GroupLags
from viewstamp.metering.log_rates import LogRates

__all__ = ["GroupLag", "GroupLags", "LogRates"]
