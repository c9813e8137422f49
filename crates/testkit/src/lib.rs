//! Real MongoDB clusters, faulty networks, real processes, and waiting for states.
