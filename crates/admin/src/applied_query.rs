//! The query of `/api/applied`: `aggregate=order-7&sequence=12&timeout=5`.

use std::time::Duration;

use crate::operator::AppliedRequest;

const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);
/// Proxies and load balancers close a silent connection after a minute.
const MAX_TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) fn parse(query: &str) -> Result<AppliedRequest, &'static str> {
    let (mut aggregate, mut sequence, mut timeout) = (None, None, DEFAULT_TIMEOUT);
    for (name, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
        let value = decode(value).ok_or("the query is not percent-encoded UTF-8")?;
        match name {
            "aggregate" => aggregate = Some(value),
            "sequence" => sequence = value.parse().ok(),
            "timeout" => timeout = parse_timeout(&value).ok_or("`timeout` must be seconds, up to 30")?,
            // Chosen by the server already.
            "pipeline" => {}
            _ => return Err("unknown parameter; use `aggregate`, `sequence` and `timeout`"),
        }
    }
    let aggregate = aggregate.filter(|aggregate| !aggregate.is_empty()).ok_or("`aggregate` is missing")?;
    Ok(AppliedRequest { aggregate, sequence: sequence.ok_or("`sequence` must be a whole number")?, timeout })
}

fn parse_timeout(seconds: &str) -> Option<Duration> {
    let timeout = Duration::try_from_secs_f64(seconds.parse().ok()?).ok()?;
    (timeout <= MAX_TIMEOUT).then_some(timeout)
}

/// `None` if it is not percent-encoded UTF-8.
pub(crate) fn decode(text: &str) -> Option<String> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digits = [bytes.next()?, bytes.next()?];
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            other => other,
        });
    }
    String::from_utf8(decoded).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_names_aggregate_sequence_and_timeout() {
        let request = |aggregate: &str, timeout| {
            Ok(AppliedRequest { aggregate: aggregate.into(), sequence: 12, timeout: Duration::from_millis(timeout) })
        };
        assert_eq!(parse("aggregate=order-7&sequence=12"), request("order-7", 5_000));
        assert_eq!(parse("sequence=12&timeout=0.25&aggregate=a%26b%20c+d%C3%A9"), request("a&b c dé", 250));
        for wrong in [
            "",
            "aggregate=a",
            "aggregate=&sequence=1",
            "sequence=1",
            "aggregate=a&sequence=x",
            "aggregate=a&sequence=1&timeout=31",
            "aggregate=a&sequence=1&timeout=-1",
            "aggregate=%FF&sequence=1",
            "aggregate=%4&sequence=1",
            "aggregate=a&sequence=1&model=x",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
