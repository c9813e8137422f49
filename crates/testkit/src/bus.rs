//! The bus of a test: plain, or with TLS and keys required if `HEADWATER_TEST_SECURED_BUS` is set, or with a profile of the broker if
//! `HEADWATER_TEST_BUS_PROFILE` names one, as `NAME/SCALE`.

pub(crate) mod access;
mod test_broker;

use std::path::Path;

use local_cluster::BrokerEndpoint;
use servicebus::administration::AdministrationClient;
use servicebus::{Client, Config};

pub use access::{create_access, credential, sign_token};
pub use test_broker::TestBroker;

const SECURED_VARIABLE: &str = "HEADWATER_TEST_SECURED_BUS";
const PROFILE_VARIABLE: &str = "HEADWATER_TEST_BUS_PROFILE";

/// Whether the brokers of this test run require TLS and keys.
pub fn is_secured() -> bool {
    std::env::var_os(SECURED_VARIABLE).is_some()
}

/// The profile that the brokers of this test run have, and the number that its times are divided by.
///
/// # Panics
/// When the variable names no profile.
pub fn profile() -> Option<(String, f64)> {
    let text = std::env::var(PROFILE_VARIABLE).ok()?;
    let (name, scale) = text.split_once('/').expect("a profile and its scale, such as `harsh/60`");
    Some((name.to_owned(), scale.parse().expect("the scale is a number")))
}

/// A client with full rights.
///
/// # Panics
/// When the files of the broker cannot be read.
pub fn client(broker: &BrokerEndpoint, config: Config) -> Client {
    Client::new(&broker.connection_string(), trusting(broker, config)).expect("a test broker has valid settings")
}

/// The same for administration.
///
/// # Panics
/// When the files of the broker cannot be read.
pub fn administration(broker: &BrokerEndpoint) -> AdministrationClient {
    let config = trusting(broker, Config::default());
    AdministrationClient::new(&broker.connection_string(), &config).expect("a test broker has valid settings")
}

fn trusting(broker: &BrokerEndpoint, config: Config) -> Config {
    Config { ca_file: broker.ca_file().map(Path::to_owned), ..config }
}
