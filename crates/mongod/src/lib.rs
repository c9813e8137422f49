//! A real mongod on this machine: found, or fetched and verified, then started.
