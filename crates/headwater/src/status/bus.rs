//! What the bus itself says of the subscription: how much waits, and how many dead letters there are.
//!
//! Asked over the bus's administration, one GET. Only where that is plain HTTP beside AMQP, as with the embedded broker and the emulator; of
//! Azure, whose administration wants TLS and a token, nothing is known yet.

use std::io;
use std::time::Duration;

use admin::status::Bus;
use servicebus::ConnectionString;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

const ANSWER_WITHIN: Duration = Duration::from_secs(2);
/// An entry has a few kilobytes.
const LONGEST: u64 = 64 << 10;

/// One subscription's administration.
#[derive(Clone, Debug)]
pub(crate) struct Subscription {
    /// `None`: it cannot be asked.
    authority: Option<String>,
    path: String,
}

impl Subscription {
    pub(crate) fn new(bus: &ConnectionString, topic: &str, subscription: &str) -> Self {
        let authority = bus.emulator.then(|| bus.authority());
        Self { authority, path: format!("/{}/Subscriptions/{}", encoded(topic), encoded(subscription)) }
    }

    /// What is not answered is not known.
    pub(super) async fn counts(&self) -> Bus {
        let Some(authority) = &self.authority else { return Bus::default() };
        match timeout(ANSWER_WITHIN, self.get(authority)).await {
            Ok(Ok(answer)) => read(&answer),
            Ok(Err(_)) | Err(_) => Bus::default(),
        }
    }

    async fn get(&self, authority: &str) -> io::Result<String> {
        let mut stream = TcpStream::connect(authority).await?;
        let path = &self.path;
        let request =
            format!("GET {path}?api-version=2021-05 HTTP/1.1\r\nhost: {authority}\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.take(LONGEST).read_to_string(&mut answer).await?;
        Ok(answer)
    }
}

fn read(answer: &str) -> Bus {
    if !answer.starts_with("HTTP/1.1 200 ") {
        return Bus::default();
    }
    let count = |name: &str| {
        let (_, rest) = answer.split_once(&format!(":{name}>"))?;
        rest.split('<').next()?.parse().ok()
    };
    Bus { waiting: count("ActiveMessageCount"), dead_letters: count("DeadLetterMessageCount") }
}

/// A name as part of a path.
fn encoded(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    name.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_read_from_an_entry_and_from_nothing_else() {
        let entry = "HTTP/1.1 200 OK\r\n\r\n<CountDetails><d2p1:ActiveMessageCount>3</d2p1:ActiveMessageCount>\
                     <d2p1:DeadLetterMessageCount>1</d2p1:DeadLetterMessageCount></CountDetails>";
        assert_eq!(read(entry), Bus { waiting: Some(3), dead_letters: Some(1) });
        assert_eq!(read(&entry.replace("200 OK", "404 Not Found")), Bus::default());
        assert_eq!(read("HTTP/1.1 200 OK\r\n\r\n<d2p1:ActiveMessageCount>many<"), Bus::default());
    }

    #[test]
    fn a_name_cannot_leave_its_place_in_the_path() {
        let bus = ConnectionString::parse("Endpoint=sb://localhost;UseDevelopmentEmulator=true").unwrap();
        let path = Subscription::new(&bus, "a/b", "c d?e\r\n").path;
        assert_eq!(path, "/a/b/Subscriptions/c%20d%3Fe%0D%0A");
    }

    #[tokio::test]
    async fn azure_is_not_asked() {
        let bus = ConnectionString::parse("Endpoint=sb://shop.servicebus.windows.net").unwrap();
        assert_eq!(Subscription::new(&bus, "events", "read-models").counts().await, Bus::default());
    }
}
