//! Reads the machine's clock, which may be set to any time.

use jiff::{Timestamp, Zoned, tz::TimeZone};
use std::time::SystemTime;

/// Returns the current time. If the clock is outside the years -9999 to 9999, returns the nearest time within them.
#[must_use]
pub fn now() -> Timestamp {
    within(SystemTime::now())
}

/// Returns the current time in the machine's time zone.
#[must_use]
pub fn local_now() -> Zoned {
    now().to_zoned(TimeZone::system())
}

fn within(time: SystemTime) -> Timestamp {
    let nearest = if time < SystemTime::UNIX_EPOCH { Timestamp::MIN } else { Timestamp::MAX };
    Timestamp::try_from(time).unwrap_or(nearest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_clock_out_of_range_gives_the_nearest_time() {
        let epoch = SystemTime::UNIX_EPOCH;
        assert_eq!(within(epoch + Duration::from_secs(86_400)).to_string(), "1970-01-02T00:00:00Z");
        let ages = [Duration::from_secs(400_000_000_000), Duration::from_secs(i64::MAX as u64)];
        for age in ages {
            let (late, early) = (epoch.checked_add(age), epoch.checked_sub(age));
            assert!(late.is_none_or(|late| within(late) == Timestamp::MAX) && early.is_none_or(|e| within(e) == Timestamp::MIN));
        }
        for time in [Timestamp::MIN, Timestamp::MAX] {
            for offset in [-24, 0, 24] {
                let zone = TimeZone::fixed(jiff::tz::offset(offset));
                assert!(time.to_zoned(zone).strftime("%Y%m%d-%H%M%S").to_string().contains("9999"));
            }
        }
    }
}
