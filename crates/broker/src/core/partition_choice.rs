//! Selects the partition of a message on partitioned entities.

use super::send::IncomingMessage;

pub(super) const COUNT: u8 = 16;

/// The key is the session id, else the partition key, else the message id if duplicates are detected. Without a key,
/// round robin.
pub(super) fn choose(message: &IncomingMessage, by_message_id: bool, next: &mut u8) -> u8 {
    let id = message.message_id.as_deref().filter(|_| by_message_id);
    let session = message.session_id.as_deref().filter(|id| !id.is_empty() || message.partition_key.is_none());
    match session.or(message.partition_key.as_deref()).or(id) {
        // CRC-32 gives the same result in every version of the program: a session stays in its partition.
        Some(key) => (crc32fast::hash(key.as_bytes()) % u32::from(COUNT)) as u8,
        None => {
            let chosen = *next % COUNT;
            *next = (chosen + 1) % COUNT;
            chosen
        }
    }
}

/// Whether a batch has one session id and one partition key, as partitioned entities require.
pub(super) fn is_uniform(messages: &[IncomingMessage]) -> bool {
    let alike = |one: &IncomingMessage, other: &IncomingMessage| {
        one.session_id == other.session_id && one.partition_key == other.partition_key
    };
    messages.windows(2).all(|pair| alike(&pair[0], &pair[1]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(id: Option<&str>, session: Option<&str>, key: Option<&str>) -> IncomingMessage {
        IncomingMessage {
            message_id: id.map(Into::into),
            session_id: session.map(Into::into),
            partition_key: key.map(Into::into),
            ..IncomingMessage::default()
        }
    }

    #[test]
    fn session_id_then_partition_key_then_message_id_decide() {
        let choose = |message: IncomingMessage, by_id| choose(&message, by_id, &mut 9);
        let by_session = choose(message(Some("m"), Some("s"), Some("s")), true);
        assert_eq!(by_session, choose(message(None, Some("s"), None), false));
        assert_eq!(choose(message(Some("m"), None, Some("k")), true), choose(message(None, None, Some("k")), false));
        assert_eq!(choose(message(Some("m"), None, None), true), choose(message(None, None, Some("m")), false));
        assert_eq!(choose(message(Some("m"), None, None), false), 9);
    }

    #[test]
    fn without_a_key_partitions_are_round_robin() {
        let mut next = 0;
        let chosen: Vec<u8> = (0..18).map(|_| choose(&message(None, None, None), true, &mut next)).collect();
        assert_eq!(chosen, (0..16).chain(0..2).collect::<Vec<_>>());
    }

    #[test]
    fn sessions_spread_over_all_partitions() {
        let mut used = [0u32; COUNT as usize];
        for n in 0..1600 {
            used[choose(&message(None, Some(&format!("session-{n}")), None), true, &mut 0) as usize] += 1;
        }
        assert!(used.iter().all(|count| (50..200).contains(count)), "{used:?}");
    }
}
