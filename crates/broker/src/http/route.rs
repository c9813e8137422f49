//! Parses the path and query of a request.

use std::fmt;

use super::backend::{EntityListing, PageRange};
use super::response::HttpError;
use crate::atom::{ApiVersion, EntityAddress};

/// The service's default page size.
const DEFAULT_TOP: usize = 100;
/// Bounds the cost of one response.
const MAX_TOP: usize = 1000;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Route {
    Health,
    /// The namespace itself.
    Root,
    NamespaceInfo,
    List(EntityListing),
    Entity(EntityAddress),
    Rules {
        topic: String,
        subscription: String,
    },
    Rule {
        topic: String,
        subscription: String,
        name: String,
    },
    /// The path after `$test/`.
    Test(String),
}

impl Route {
    /// The entities whose authorization rules apply.
    pub(super) fn entities(&self) -> Vec<EntityAddress> {
        let subscription = |topic: &String, name: &String| {
            vec![
                EntityAddress::Entity(topic.clone()),
                EntityAddress::Subscription { topic: topic.clone(), name: name.clone() },
            ]
        };
        match self {
            Self::Health | Self::Root | Self::NamespaceInfo | Self::Test(_) => vec![],
            Self::List(EntityListing::Queues | EntityListing::Topics) => vec![],
            Self::List(EntityListing::Subscriptions { topic }) => vec![EntityAddress::Entity(topic.clone())],
            Self::Entity(EntityAddress::Entity(name)) => vec![EntityAddress::Entity(name.clone())],
            Self::Entity(EntityAddress::Subscription { topic, name }) => subscription(topic, name),
            Self::Rules { topic, subscription: name } => subscription(topic, name),
            Self::Rule { topic, subscription: name, .. } => subscription(topic, name),
        }
    }
}

/// The query of a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Query {
    /// `None` if not given, as by browsers and probes.
    pub(super) version: Option<ApiVersion>,
    pub(super) page: PageRange,
}

pub(super) fn parse_route(path: &str, query: &Query) -> Result<Route, HttpError> {
    let path = percent_decode(path)?;
    let path = path.trim_matches('/');
    let first = path.split('/').next().unwrap_or_default().to_ascii_lowercase();
    match (first.as_str(), path.split_once('/')) {
        ("", _) => Ok(Route::Root),
        // SDKs always send their version. Then this is a queue named `health`.
        ("health", None) if query.version.is_none() => Ok(Route::Health),
        ("$namespaceinfo", None) => Ok(Route::NamespaceInfo),
        ("$resources", Some((_, kind))) if kind.eq_ignore_ascii_case("queues") => {
            Ok(Route::List(EntityListing::Queues))
        }
        ("$resources", Some((_, kind))) if kind.eq_ignore_ascii_case("topics") => {
            Ok(Route::List(EntityListing::Topics))
        }
        ("$test", rest) => Ok(Route::Test(rest.map_or_else(String::new, |(_, rest)| rest.to_owned()))),
        (special, _) if special.starts_with('$') => Err(HttpError::not_found(path)),
        _ => parse_entity_path(path),
    }
}

fn parse_entity_path(path: &str) -> Result<Route, HttpError> {
    let Some((topic, below)) = split_at_segment(path, "/subscriptions") else {
        return Ok(Route::Entity(EntityAddress::Entity(path.to_owned())));
    };
    let topic = topic.to_owned();
    if below.is_empty() {
        return Ok(Route::List(EntityListing::Subscriptions { topic }));
    }
    let Some((name, rule)) = split_at_segment(below, "/rules") else {
        let name = single_segment(below)?;
        return Ok(Route::Entity(EntityAddress::Subscription { topic, name }));
    };
    let subscription = single_segment(name)?;
    if rule.is_empty() {
        return Ok(Route::Rules { topic, subscription });
    }
    Ok(Route::Rule { topic, subscription, name: single_segment(rule)? })
}

/// Names of subscriptions and rules contain no slash.
fn single_segment(name: &str) -> Result<String, HttpError> {
    match name.contains('/') {
        true => Err(HttpError::bad_request(format!("'{name}' is not a valid name of a subscription or rule"))),
        false => Ok(name.to_owned()),
    }
}

/// Splits at a whole segment, ignoring case. The slash after the segment is dropped.
fn split_at_segment<'a>(path: &'a str, segment: &str) -> Option<(&'a str, &'a str)> {
    let lower = path.to_ascii_lowercase();
    let (at, _) = lower.match_indices(segment).find(|(at, _)| {
        let end = at + segment.len();
        *at > 0 && (end == lower.len() || lower.as_bytes()[end] == b'/')
    })?;
    Some((&path[..at], path[at + segment.len()..].trim_start_matches('/')))
}

pub(super) fn parse_query(text: &str) -> Result<Query, HttpError> {
    let mut query = Query { version: None, page: PageRange { skip: 0, top: DEFAULT_TOP } };
    for pair in text.split('&').filter(|pair| !pair.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let value = percent_decode(value)?;
        match percent_decode(key)?.to_ascii_lowercase().as_str() {
            "api-version" => query.version = Some(parse_version(&value)?),
            "$skip" => query.page.skip = parse_number("$skip", &value)?,
            "$top" => query.page.top = parse_number("$top", &value)?.min(MAX_TOP),
            _ => {}
        }
    }
    Ok(query)
}

fn parse_version(value: &str) -> Result<ApiVersion, HttpError> {
    ApiVersion::parse(value).ok_or_else(|| {
        HttpError::bad_request(format!(
            "unknown api-version '{value}': expected a version such as 2017-04, 2021-05 or 2024-05"
        ))
    })
}

fn parse_number(key: &str, value: &str) -> Result<usize, HttpError> {
    let parsed = value.parse::<u32>().ok().and_then(|number| usize::try_from(number).ok());
    parsed.ok_or_else(|| HttpError::bad_request(format!("{key} is '{value}': expected an integer from 0")))
}

/// Percent-decodes text. Slashes may be encoded (Python) or not (JavaScript).
pub(super) fn percent_decode(text: &str) -> Result<String, HttpError> {
    let wrong = |why: &dyn fmt::Display| HttpError::bad_request(format!("invalid path or query: {why}"));
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((byte, tail)) = rest.split_first() {
        rest = tail;
        if *byte != b'%' {
            bytes.push(*byte);
            continue;
        }
        let (pair, tail) = tail.split_at_checked(2).ok_or_else(|| wrong(&"an escape is cut short"))?;
        let digits = std::str::from_utf8(pair).ok().filter(|pair| pair.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let value = digits.and_then(|pair| u8::from_str_radix(pair, 16).ok());
        bytes.push(value.ok_or_else(|| wrong(&"an escape is not two hexadecimal digits"))?);
        rest = tail;
    }
    let text = String::from_utf8(bytes).map_err(|error| wrong(&error.utf8_error()))?;
    match text.chars().any(char::is_control) {
        true => Err(wrong(&"it holds a control character")),
        false => Ok(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to(path: &str) -> Route {
        parse_route(path, &parse_query("api-version=2021-05").unwrap()).unwrap()
    }

    fn subscription(topic: &str, name: &str) -> Route {
        Route::Entity(EntityAddress::Subscription { topic: topic.into(), name: name.into() })
    }

    #[test]
    fn paths_of_every_sdk_find_their_entity() {
        let rule = |topic: &str, subscription: &str, name: &str| Route::Rule {
            topic: topic.into(),
            subscription: subscription.into(),
            name: name.into(),
        };
        let cases = [
            ("/orders", Route::Entity(EntityAddress::Entity("orders".into()))),
            ("/a%2Fb", Route::Entity(EntityAddress::Entity("a/b".into()))),
            ("/a/b/", Route::Entity(EntityAddress::Entity("a/b".into()))),
            ("/txt%2F.-_123", Route::Entity(EntityAddress::Entity("txt/.-_123".into()))),
            ("/%C3%A4", Route::Entity(EntityAddress::Entity("ä".into()))),
            ("/subscriptionsx", Route::Entity(EntityAddress::Entity("subscriptionsx".into()))),
            ("/t/subscriptionsx", Route::Entity(EntityAddress::Entity("t/subscriptionsx".into()))),
            ("/subscriptions", Route::Entity(EntityAddress::Entity("subscriptions".into()))),
            ("/t/subscriptions", Route::List(EntityListing::Subscriptions { topic: "t".into() })),
            ("/a/b/Subscriptions/s", subscription("a/b", "s")),
            ("/a%2Fb/subscriptions/s", subscription("a/b", "s")),
            ("/t/SUBSCRIPTIONS/S", subscription("t", "S")),
            ("/t/Subscriptions/s/Rules", Route::Rules { topic: "t".into(), subscription: "s".into() }),
            ("/t/subscriptions/s/rules/$Default", rule("t", "s", "$Default")),
            ("/t/subscriptions/s/rules/%24Default", rule("t", "s", "$Default")),
            ("/$Resources/queues", Route::List(EntityListing::Queues)),
            ("/%24Resources/Topics", Route::List(EntityListing::Topics)),
            ("/", Route::Root),
            ("/$namespaceinfo", Route::NamespaceInfo),
            ("/$test/clock", Route::Test("clock".into())),
            ("/health", Route::Entity(EntityAddress::Entity("health".into()))),
        ];
        for (path, expected) in cases {
            assert_eq!(to(path), expected, "{path}");
        }
        assert_eq!(parse_route("/health", &parse_query("").unwrap()).unwrap(), Route::Health);
    }

    #[test]
    fn invalid_paths_are_refused() {
        for (path, status) in [
            ("/a%2", 400),
            ("/a%zz", 400),
            ("/a%+1", 400),
            ("/a%ff", 400),
            ("/a%00b", 400),
            ("/t/subscriptions/a/b", 400),
            ("/t/subscriptions/s/rules/a/b", 400),
            ("/$servicebus/websocket", 404),
            ("/$Resources/relays", 404),
        ] {
            assert_eq!(parse_route(path, &parse_query("").unwrap()).unwrap_err().status.as_u16(), status, "{path}");
        }
    }

    #[test]
    fn the_page_is_parsed_from_the_query() {
        let page = |text| parse_query(text).unwrap().page;
        assert_eq!(page("%24skip=200&%24top=50&api-version=2021-05"), PageRange { skip: 200, top: 50 });
        assert_eq!(page("$skip=0&$top=100"), PageRange { skip: 0, top: 100 });
        assert_eq!(page("enrich=false"), PageRange { skip: 0, top: DEFAULT_TOP });
        assert_eq!(page("$top=99999"), PageRange { skip: 0, top: MAX_TOP });
        for wrong in ["$skip=-1", "$top=x", "$top=", "api-version=newest", "$skip=99999999999999999999"] {
            assert_eq!(parse_query(wrong).unwrap_err().status.as_u16(), 400, "{wrong}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_path_makes_the_router_panic(path in "[/%a-cäsubription$ÀRles0-9]{0,30}", text in "\\PC{0,20}") {
            let _ = parse_query(&text).map(|query| parse_route(&path, &query));
        }
    }
}
