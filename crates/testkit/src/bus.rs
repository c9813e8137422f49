//! The bus of a test: plain, or with TLS and keys required if `HEADWATER_TEST_SECURED_BUS` is set.

pub(crate) mod access;
mod test_broker;

use std::path::Path;

use local_cluster::BrokerEndpoint;
use servicebus::administration::AdministrationClient;
use servicebus::{Client, Config};

pub use access::{create_access, credential, sign_token};
pub use test_broker::TestBroker;

const SECURED_VARIABLE: &str = "HEADWATER_TEST_SECURED_BUS";

/// Whether the brokers of this test run require TLS and keys.
pub fn is_secured() -> bool {
    std::env::var_os(SECURED_VARIABLE).is_some()
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
