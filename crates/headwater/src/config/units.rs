//! Durations and sizes in the form that users write.

use std::time::Duration;

/// `250ms`, `15s`, `2m`, `1h30m`, `7d`.
pub(crate) fn parse_duration(text: &str) -> Option<Duration> {
    humantime::parse_duration(text).ok()
}

pub(crate) fn format_duration(duration: Duration) -> String {
    humantime::format_duration(duration).to_string().replace(' ', "")
}

const UNITS: [(&str, u64); 8] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("kB", 1_000),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("B", 1),
];

/// `64KiB`, `8MiB`, `1GiB`, `500kB`.
pub(crate) fn parse_size(text: &str) -> Option<u64> {
    let (unit, factor) = UNITS.iter().find(|(unit, _)| text.ends_with(unit))?;
    let number = text.strip_suffix(unit)?.trim_end();
    number.parse::<u64>().ok()?.checked_mul(*factor)
}

pub(crate) fn format_size(bytes: u64) -> String {
    let binary = UNITS[..3].iter().rev().find(|(_, factor)| bytes > 0 && bytes.is_multiple_of(*factor));
    binary.map_or_else(|| format!("{bytes}B"), |(unit, factor)| format!("{}{unit}", bytes / factor))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_sizes_are_parsed_and_formatted() {
        for text in ["250ms", "15s", "2m", "1h30m", "7days"] {
            assert_eq!(format_duration(parse_duration(text).unwrap()), text);
        }
        for text in ["1B", "64KiB", "8MiB", "3GiB", "1025B"] {
            assert_eq!(format_size(parse_size(text).unwrap()), text);
        }
        assert_eq!(parse_size("500kB"), Some(500_000));
        for bad in ["", "15", "MiB", "-1MiB", "99999999999999999999GiB", "1.5MiB"] {
            assert_eq!(parse_size(bad), None, "{bad}");
        }
    }
}
