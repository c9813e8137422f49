//! Station 3 of 5: events out to the topic.
//!
//! Takes what [`crate::capture`] read, in order; keeps at most one unacknowledged transfer per session and many sessions in flight; lets
//! the checkpoint follow the unbroken prefix of acknowledgements. Writes nothing once the gate of its term is shut.
