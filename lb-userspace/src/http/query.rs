//! Parameters of a request's query string.

use std::borrow::Cow;

use hyper::Uri;

/// All values of the parameter `name`, decoded, in order. A parameter without `=` is empty.
pub fn query_values<'a>(uri: &'a Uri, name: &'a str) -> impl Iterator<Item = Cow<'a, str>> {
    form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes())
        .filter(move |(key, _)| key == name)
        .map(|(_, value)| value)
}

/// The first value of the parameter `name`.
pub fn query_value<'a>(uri: &'a Uri, name: &'a str) -> Option<Cow<'a, str>> {
    query_values(uri, name).next()
}

/// Whether the flag `name` is set: `?name`, `?name=true` or `?name=1`.
pub fn has_flag(uri: &Uri, name: &str) -> bool {
    query_value(uri, name).is_some_and(|value| matches!(&*value, "" | "true" | "1"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_decoded_and_may_repeat() {
        let uri: Uri = "/readyz?exclude=a%2Fb&verbose&exclude=c+d".parse().unwrap();
        let excluded: Vec<_> = query_values(&uri, "exclude").collect();
        assert_eq!(excluded, ["a/b", "c d"]);
        assert!(has_flag(&uri, "verbose"));
        assert_eq!(query_value(&uri, "limit"), None);
    }

    #[test]
    fn flags_can_be_turned_off() {
        for (query, set) in [
            ("watch", true),
            ("watch=", true),
            ("watch=true", true),
            ("watch=1", true),
            ("watch=false", false),
            ("watch=0", false),
            ("watchful", false),
        ] {
            let uri: Uri = format!("/?{query}").parse().unwrap();
            assert_eq!(has_flag(&uri, "watch"), set, "{query}");
        }
    }
}
