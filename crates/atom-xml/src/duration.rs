//! ISO 8601 durations, as in the administration API and the emulator's configuration: `PT1M`,
//! `P1DT2H3.5S`.
//!
//! A year is 365 days and a month is 30, as in .NET, where the service's values come from.

use std::time::Duration;

/// .NET's `TimeSpan.MaxValue`, which the service uses for "forever".
pub const FOREVER: &str = "P10675199DT2H48M5.4775807S";

/// Compared by whole days, because clients round the fraction of a second, down (Python, by 42 µs) or up.
const FOREVER_DAYS: u64 = 10_675_199;

const DAY: u64 = 86_400;
const DATE_UNITS: [(char, u64); 4] = [('Y', 365 * DAY), ('M', 30 * DAY), ('W', 7 * DAY), ('D', DAY)];
const TIME_UNITS: [(char, u64); 3] = [('H', 3600), ('M', 60), ('S', 1)];

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not an ISO 8601 duration, such as PT30S, PT1M or P1DT12H")]
pub struct InvalidDuration;

pub fn parse(text: &str) -> Result<Duration, InvalidDuration> {
    read(text.trim()).ok_or(InvalidDuration)
}

/// Like [`parse`], with `None` for "forever".
pub fn parse_bounded(text: &str) -> Result<Option<Duration>, InvalidDuration> {
    parse(text).map(|span| (span.as_secs() < FOREVER_DAYS * DAY).then_some(span))
}

pub fn format_bounded(span: Option<Duration>) -> String {
    span.map_or_else(|| FOREVER.to_owned(), format)
}

pub fn format(span: Duration) -> String {
    if span.is_zero() {
        return "PT0S".to_owned();
    }
    let seconds = span.as_secs();
    let mut text = "P".to_owned();
    push(&mut text, seconds / DAY, 'D');
    if seconds.is_multiple_of(DAY) && span.subsec_nanos() == 0 {
        return text;
    }
    text.push('T');
    push(&mut text, seconds % DAY / 3600, 'H');
    push(&mut text, seconds % 3600 / 60, 'M');
    match span.subsec_nanos() {
        0 => push(&mut text, seconds % 60, 'S'),
        nanos => {
            let fraction = format!("{nanos:09}");
            text.push_str(&format!("{}.{}S", seconds % 60, fraction.trim_end_matches('0')));
        }
    }
    text
}

fn push(text: &mut String, number: u64, unit: char) {
    if number > 0 {
        text.push_str(&number.to_string());
        text.push(unit);
    }
}

fn read(text: &str) -> Option<Duration> {
    let body = text.strip_prefix('P')?;
    match body.split_once('T') {
        None => sum(body, &DATE_UNITS),
        Some(("", time)) => sum(time, &TIME_UNITS),
        Some((date, time)) => sum(date, &DATE_UNITS)?.checked_add(sum(time, &TIME_UNITS)?),
    }
}

/// One half of a duration: numbers with units, each unit at most once, larger units first.
fn sum(mut rest: &str, units: &[(char, u64)]) -> Option<Duration> {
    if rest.is_empty() {
        return None;
    }
    let mut units = units.iter();
    let mut total = Duration::ZERO;
    while !rest.is_empty() {
        let end = rest.find(|c: char| c.is_ascii_alphabetic())?;
        let (number, tail) = rest.split_at(end);
        let letter = tail.chars().next()?;
        let (_, seconds) = units.find(|(unit, _)| *unit == letter)?;
        total = total.checked_add(amount(number, *seconds)?)?;
        rest = &tail[1..];
    }
    Some(total)
}

/// Only seconds may have a fraction. Digits below a nanosecond are dropped.
fn amount(number: &str, seconds: u64) -> Option<Duration> {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    if !digits(whole) || !digits(fraction) || (number.contains('.') && seconds != 1) {
        return None;
    }
    let nanos: String = fraction.chars().chain(std::iter::repeat('0')).take(9).collect();
    let whole = whole.parse::<u64>().ok()?.checked_mul(seconds)?;
    Some(Duration::new(whole, nanos.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3600;

    #[test]
    fn durations_are_parsed_like_the_service() {
        let cases = [
            ("PT42S", Duration::from_secs(42)),
            ("PT1M", Duration::from_secs(60)),
            ("PT3H", Duration::from_secs(3 * HOUR)),
            ("P7D", Duration::from_secs(7 * DAY)),
            ("P1DT2H3M4S", Duration::from_secs(DAY + 2 * HOUR + 3 * 60 + 4)),
            ("P1DT0.5S", Duration::from_millis(86_400_500)),
            ("PT10M1.25S", Duration::from_millis(601_250)),
            ("PT0.0000001S", Duration::from_nanos(100)),
            ("PT1.00000000099S", Duration::from_secs(1)),
            ("PT90M", Duration::from_secs(90 * 60)),
            ("PT300S", Duration::from_secs(300)),
            ("P0D", Duration::ZERO),
            ("PT0S", Duration::ZERO),
            ("P2W", Duration::from_secs(14 * DAY)),
            ("P1Y2M", Duration::from_secs(425 * DAY)),
            (" PT5S\n", Duration::from_secs(5)),
        ];
        for (text, span) in cases {
            assert_eq!(parse(text), Ok(span), "{text}");
        }
    }

    #[test]
    fn invalid_durations_are_refused() {
        for text in [
            "",
            "P",
            "PT",
            "P1DT",
            "1M",
            "PT1",
            "PT1X",
            "P1S",
            "PT1D",
            "PT1S2M",
            "PT1M1M",
            "P-1D",
            "-PT1S",
            "PT.5S",
            "PT5.S",
            "PT1.5M",
            "P1.5D",
            "PT1 M",
            "pt1m",
            "00:01:00",
            "PT99999999999999999999S",
            "P999999999999999999Y",
            "PT١S",
        ] {
            assert_eq!(parse(text), Err(InvalidDuration), "{text:?}");
        }
    }

    #[test]
    fn durations_are_formatted_like_the_service() {
        let cases = [
            (Duration::ZERO, "PT0S"),
            (Duration::from_secs(42), "PT42S"),
            (Duration::from_secs(60), "PT1M"),
            (Duration::from_secs(3661), "PT1H1M1S"),
            (Duration::from_secs(7 * DAY), "P7D"),
            (Duration::from_secs(DAY + 60), "P1DT1M"),
            (Duration::from_millis(500), "PT0.5S"),
            (Duration::from_millis(60_500), "PT1M0.5S"),
            (Duration::from_millis(86_400_250), "P1DT0.25S"),
        ];
        for (span, text) in cases {
            assert_eq!(format(span), text);
            assert_eq!(parse(text), Ok(span), "{text}");
        }
    }

    #[test]
    fn forever_is_recognized_even_if_rounded() {
        for text in [FOREVER, "P10675199DT2H48M5.477539S", "P10675199DT2H48M5.47758S", "P10675199D", "P29300Y"] {
            assert_eq!(parse_bounded(text), Ok(None), "{text}");
        }
        assert_eq!(parse_bounded("P10675198D"), Ok(Some(Duration::from_secs(10_675_198 * DAY))));
        assert_eq!(format_bounded(None), FOREVER);
        assert_eq!(format_bounded(Some(Duration::from_secs(1))), "PT1S");
    }

    proptest::proptest! {
        #[test]
        fn a_round_trip_keeps_everything(seconds in 0_u64..10_675_199 * DAY, nanos in 0_u32..1_000_000_000) {
            let span = Duration::new(seconds, nanos);
            proptest::prop_assert_eq!(parse_bounded(&format(span)), Ok(Some(span)));
        }

        #[test]
        fn no_text_makes_the_reader_panic(text in "P?[0-9YMWDTHS.-]{0,12}|\\PC{0,12}") {
            let _ = parse_bounded(&text);
        }
    }
}
