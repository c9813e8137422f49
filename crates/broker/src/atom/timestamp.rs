//! Formats timestamps for XML: `2026-01-02T03:04:05.678Z`.

use crate::core::Timestamp;

/// .NET's `DateTime.MinValue`; clients read it as "not accessed yet".
pub(super) const NEVER: &str = "0001-01-01T00:00:00Z";

const DAY: u64 = 86_400_000;

pub(crate) fn format(moment: Timestamp) -> String {
    let (year, month, day) = civil_date(moment.0 / DAY);
    let millis = moment.0 % DAY;
    let (hour, minute, second) = (millis / 3_600_000, millis / 60_000 % 60, millis / 1000 % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", millis % 1000)
}

/// Converts days since 1970-01-01 to a date. Years start in March here, so that the leap day comes last.
fn civil_date(days: u64) -> (u64, u64, u64) {
    const FROM_YEAR_ZERO: u64 = 719_468;
    const CYCLE: u64 = 146_097; // 400 years
    let days = days + FROM_YEAR_ZERO;
    let in_cycle = days % CYCLE;
    let year = (in_cycle - in_cycle / 1460 + in_cycle / 36_524 - in_cycle / 146_096) / 365;
    let in_year = in_cycle - (365 * year + year / 4 - year / 100);
    let month = (5 * in_year + 2) / 153;
    let day = in_year - (153 * month + 2) / 5 + 1;
    let (year, month) = if month < 10 { (year, month + 3) } else { (year + 1, month - 9) };
    (days / CYCLE * 400 + year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_are_formatted_in_utc() {
        let cases = [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z"),
            (951_868_800_000, "2000-03-01T00:00:00.000Z"),
            (1_709_164_800_000, "2024-02-29T00:00:00.000Z"),
            (1_767_323_045_678, "2026-01-02T03:04:05.678Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
            (253_402_300_799_999, "9999-12-31T23:59:59.999Z"),
        ];
        for (millis, text) in cases {
            assert_eq!(format(Timestamp(millis)), text);
        }
    }
}
