//! The lab (network namespaces, servers, clients) and helpers for the tests beside it.
