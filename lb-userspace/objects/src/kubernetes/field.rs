//! Single fields: addresses, ranges, ports, protocols and names. Each is parsed into its type, or
//! refused with the rule that it breaks.

use std::{
    borrow::Cow,
    fmt::Display,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    ops::RangeInclusive,
    str::FromStr,
    time::Duration,
};

use ipnet::IpNet;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::super::{Kind, ObjectRef, Problem, Refused, quoted};
use crate::{MAX_WEIGHT, Protocol, SharedName};

/// The longest RFC 1123 label.
const MAX_LABEL: usize = 63;
/// The longest RFC 1123 subdomain.
const MAX_SUBDOMAIN: usize = 253;
/// Things wrong with one object that are told one by one.
const MAX_FINDINGS: usize = 100;

/// A field that cannot be used.
#[derive(Debug)]
pub struct Invalid {
    field: String,
    /// The value in the form that is shown.
    value: String,
    rule: Cow<'static, str>,
}

impl Invalid {
    pub fn new(
        field: impl Display,
        value: impl Into<String>,
        rule: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self {
            field: field.to_string(),
            value: value.into(),
            rule: rule.into(),
        }
    }

    /// The field; then its value with the rule that it breaks.
    pub fn into_parts(self) -> (String, String) {
        (self.field, format!("{} {}", self.value, self.rule))
    }

    /// An invalid text, which is shown quoted and shortened.
    pub fn text(field: impl Display, value: &str, rule: impl Into<Cow<'static, str>>) -> Self {
        Self::new(field, quoted(value), rule)
    }
}

/// What was found wrong with one object: a tenant may write one with tens of thousands of bad
/// values, so that only the first [`MAX_FINDINGS`] are told one by one.
#[derive(Debug, Default)]
pub struct Findings {
    told: Vec<(Refused, Invalid)>,
    /// How many more there are, and how much the last of them took out of force.
    more: usize,
    last: Option<Refused>,
}

impl Findings {
    /// Records that something was refused because of a field.
    pub fn refuse(&mut self, refused: Refused, invalid: Invalid) {
        // Why all of it is refused is the one thing that must not be missed.
        if self.told.len() < MAX_FINDINGS || refused == Refused::Object {
            self.told.push((refused, invalid));
        } else {
            self.more += 1;
            self.last = Some(refused);
        }
    }

    /// The value. If there is none, the error is recorded, with what was refused because of it.
    pub fn check<T>(&mut self, refused: Refused, value: Result<T, Invalid>) -> Option<T> {
        value.map_err(|invalid| self.refuse(refused, invalid)).ok()
    }

    /// The problems of the object, without file and line.
    pub fn into_problems(self, object: &ObjectRef) -> Vec<Problem> {
        let problem = |refused, message| Problem {
            refused,
            object: Some(object.clone()),
            file: None,
            line: None,
            message,
        };
        let told = self.told.into_iter().map(|(refused, invalid)| {
            let (field, message) = invalid.into_parts();
            problem(refused, format!("{field}: {message}"))
        });
        let more = self.last.map(|refused| {
            let message = format!("{} more of its values cannot be used", self.more);
            problem(refused, message)
        });
        told.chain(more).collect()
    }
}

/// The text of an annotation.
pub fn annotation<'a>(metadata: &'a ObjectMeta, name: &str) -> Option<&'a str> {
    Some(metadata.annotations.as_ref()?.get(name)?)
}

/// A limit of connections, as annotations have it. `otherwise` is added to the rule that a text breaks.
///
/// # Errors
/// If it is no whole number, or one that is too large.
pub fn connections(field: impl Display, text: &str, otherwise: &str) -> Result<u32, Invalid> {
    whole_number(field, text, 0..=i32::MAX as u32, otherwise)
}

/// The weight of an endpoint, likewise.
///
/// # Errors
/// If it is no whole number, zero, or too large.
pub fn weight(field: impl Display, text: &str, otherwise: &str) -> Result<u16, Invalid> {
    whole_number(field, text, 1..=MAX_WEIGHT, otherwise)
}

/// A time in whole seconds, at most so many, likewise.
///
/// # Errors
/// If it is no whole number, or one that is too large.
pub fn seconds(
    field: impl Display,
    text: &str,
    most: u32,
    otherwise: &str,
) -> Result<Duration, Invalid> {
    let seconds = whole_number(field, text, 0..=most, otherwise)?;
    Ok(Duration::from_secs(seconds.into()))
}

fn whole_number<T: FromStr + PartialOrd + Display>(
    field: impl Display,
    text: &str,
    range: RangeInclusive<T>,
    otherwise: &str,
) -> Result<T, Invalid> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match text.parse() {
        Ok(number) if digits && range.contains(&number) => Ok(number),
        _ => {
            let (least, most) = range.into_inner();
            let rule = format!("must be a whole number from {least} to {most}{otherwise}");
            Err(Invalid::text(field, text, rule))
        }
    }
}

/// Checks an object's name and namespace as the API server does on creation.
pub fn object_name(reference: &ObjectRef) -> Result<(), Invalid> {
    let name = &reference.name;
    if reference.kind.is_namespaced() {
        label("metadata.namespace", &name.namespace)?;
    }
    match reference.kind {
        Kind::Service | Kind::Namespace => label("metadata.name", &name.name),
        Kind::EndpointSlice
        | Kind::Node
        | Kind::Pod
        | Kind::PriorityLevel
        | Kind::FlowSchema
        | Kind::ServiceCidr => subdomain("metadata.name", &name.name),
    }
}

/// An RFC 1123 label.
pub fn label(field: impl Display, text: &str) -> Result<(), Invalid> {
    if text.len() <= MAX_LABEL && is_label(text) {
        return Ok(());
    }
    let rule = "must be 1 to 63 lower-case letters, digits or '-', not '-' at either end";
    Err(Invalid::text(field, text, rule))
}

/// The name of a port: an RFC 1123 label, or nothing.
pub fn port_name(field: impl Display, text: Option<&str>) -> Result<SharedName, Invalid> {
    let text = text.unwrap_or_default();
    if !text.is_empty() {
        label(field, text)?;
    }
    Ok(text.into())
}

/// An RFC 1123 subdomain.
pub fn subdomain(field: impl Display, text: &str) -> Result<(), Invalid> {
    if text.len() <= MAX_SUBDOMAIN && text.split('.').all(is_label) {
        return Ok(());
    }
    let rule = "must be 1 to 253 lower-case letters, digits, '-' or '.', \
                and each part begin and end with a letter or digit";
    Err(Invalid::text(field, text, rule))
}

fn is_label(text: &str) -> bool {
    let alphanumeric = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    text.starts_with(alphanumeric)
        && text.ends_with(alphanumeric)
        && text.chars().all(|c| alphanumeric(c) || c == '-')
}

/// A required port number.
pub fn port(field: impl Display, number: i32) -> Result<u16, Invalid> {
    match u16::try_from(number) {
        Ok(port) if port != 0 => Ok(port),
        _ => Err(Invalid::new(
            field,
            number.to_string(),
            "must be between 1 and 65535",
        )),
    }
}

/// An optional port number; zero if it is absent.
pub fn port_or_zero(field: impl Display, number: Option<i32>) -> Result<u16, Invalid> {
    match number {
        None | Some(0) => Ok(0),
        Some(number) => port(field, number),
    }
}

/// An absent protocol means TCP, which the API server fills in.
pub fn protocol(field: impl Display, text: Option<&str>) -> Result<Protocol, Invalid> {
    match text {
        None | Some("TCP") => Ok(Protocol::Tcp),
        Some("UDP") => Ok(Protocol::Udp),
        Some("SCTP") => Ok(Protocol::Sctp),
        Some(other) => Err(Invalid::text(field, other, "must be TCP, UDP or SCTP")),
    }
}

/// The usable values of a list; or, where that is empty, the one of a field that was there before the list.
/// Both are given with what reads a value of theirs, and the list's also is given the value's index.
pub fn listed_or_one<T, V>(
    (listed, of_list): (Option<&Vec<V>>, impl Fn(usize, &V) -> Result<T, Invalid>),
    (one, of_one): (Option<&str>, impl FnOnce(&str) -> Result<T, Invalid>),
    findings: &mut Findings,
) -> Vec<T> {
    let listed = listed.map(Vec::as_slice).unwrap_or_default();
    let values: Vec<_> = match listed.is_empty() {
        true => one
            .filter(|one| !one.is_empty())
            .map(of_one)
            .into_iter()
            .collect(),
        false => listed
            .iter()
            .enumerate()
            .map(|(index, value)| of_list(index, value))
            .collect(),
    };
    let check = |value| findings.check(Refused::Value, value);
    values.into_iter().filter_map(check).collect()
}

/// An IP address in lenient form (see [`parse_ip`]).
pub fn ip(field: impl Display, text: &str) -> Result<IpAddr, Invalid> {
    parse_ip(text).ok_or_else(|| Invalid::text(field, text, "must be an IP address"))
}

/// An IP address to which packets of a Service can be sent, by the API server's rule.
pub fn unicast_ip(field: impl Display, text: &str) -> Result<IpAddr, Invalid> {
    let special = |ip: IpAddr| {
        let link_local = match ip {
            IpAddr::V4(ip) => ip.is_link_local() || ip.is_broadcast(),
            IpAddr::V6(ip) => ip.is_unicast_link_local(),
        };
        ip.is_unspecified() || ip.is_loopback() || ip.is_multicast() || link_local
    };
    match parse_ip(text) {
        None => Err(Invalid::text(field, text, "must be an IP address")),
        Some(ip) if special(ip) => Err(Invalid::text(
            field,
            text,
            "must not be an unspecified, loopback, link-local or multicast address",
        )),
        Some(ip) => Ok(ip),
    }
}

/// A range of addresses in CIDR notation. Its host bits are cleared.
pub fn cidr(field: impl Display, text: &str) -> Result<IpNet, Invalid> {
    let parse = || {
        let (address, length) = text.split_once('/')?;
        let address = parse_ip_as_written(address)?;
        let length = decimal(length, 128)?;
        Some(IpNet::new(address, length).ok()?.trunc())
    };
    parse().ok_or_else(|| Invalid::text(field, text, "must be a range in CIDR notation"))
}

/// Reads an IP address as Kubernetes' lenient parser does: leading zeros of IPv4 parts are decimal,
/// and an IPv4-mapped IPv6 address is an IPv4 address.
pub fn parse_ip(text: &str) -> Option<IpAddr> {
    parse_ip_as_written(text).map(|ip| ip.to_canonical())
}

fn parse_ip_as_written(text: &str) -> Option<IpAddr> {
    if !text.contains(':') {
        return parse_ipv4(text).map(IpAddr::V4);
    }
    let ip: Ipv6Addr = match text.rsplit_once(':') {
        Some((head, tail)) if tail.contains('.') => {
            format!("{head}:{}", parse_ipv4(tail)?).parse().ok()?
        }
        _ => text.parse().ok()?,
    };
    Some(IpAddr::V6(ip))
}

fn parse_ipv4(text: &str) -> Option<Ipv4Addr> {
    let mut parts = text.split('.');
    let mut octets = [0; 4];
    for octet in &mut octets {
        *octet = decimal(parts.next()?, u8::MAX)?;
    }
    parts.next().is_none().then(|| octets.into())
}

/// Only digits, with any number of leading zeros, up to `max`.
fn decimal(text: &str, max: u8) -> Option<u8> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let significant = text.trim_start_matches('0');
    if significant.is_empty() {
        return Some(0);
    }
    significant.parse().ok().filter(|number| *number <= max)
}
