//! The HTTP side: who can act through it.

use std::net::SocketAddr;

use super::Finding;

/// A token on a wire that others can listen to is everybody's.
pub(super) fn declared(listen: Option<SocketAddr>, has_token: bool) -> Option<Finding> {
    let listen = listen.filter(|address| has_token && !address.ip().is_loopback())?;
    let problem = format!("listens on {listen}, and `token` goes over that network as it is");
    let remedy = "put TLS in front of it (an ingress, a mesh), or listen on 127.0.0.1 and forward the port";
    Some(Finding::warning("admin", problem, remedy))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_that_others_could_overhear_is_told() {
        let declared =
            |listen: &str, has_token| declared(listen.parse().ok(), has_token).map(|finding| finding.problem);
        assert!(declared("0.0.0.0:8080", true).unwrap().contains("0.0.0.0:8080"));
        assert!(declared("[::]:8080", true).is_some());
        for (listen, has_token) in [("0.0.0.0:8080", false), ("127.0.0.1:8080", true), ("[::1]:8080", true), ("", true)]
        {
            assert_eq!(declared(listen, has_token), None, "{listen}");
        }
    }
}
