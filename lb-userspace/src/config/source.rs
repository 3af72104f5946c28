//! Where the agent learns what the cluster has.

use std::{fmt, path::PathBuf, str::FromStr};

/// A source in the form of the flag: `kubernetes` or `dir:PATH`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SourceSpec {
    /// The API server, see [`crate::source::api`].
    #[default]
    Kubernetes,
    /// A directory of manifests, see [`crate::source::dir`].
    Dir(PathBuf),
}

impl fmt::Display for SourceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kubernetes => f.write_str("kubernetes"),
            Self::Dir(path) => write!(f, "dir:{}", path.display()),
        }
    }
}

impl FromStr for SourceSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once(':') {
            None if text == "kubernetes" => Ok(Self::Kubernetes),
            Some(("dir", path)) if !path.is_empty() => Ok(Self::Dir(path.into())),
            _ => Err(format!(
                "{text:?} is not a source: write kubernetes or dir:PATH"
            )),
        }
    }
}

/// What the operator configured about the API server. If nothing is configured, the pod's service
/// account and environment are used, by the same rules as in kube-proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApiAccess {
    pub kubeconfig: Option<PathBuf>,
    /// Address of the API server; it takes precedence over the kubeconfig's.
    pub master: Option<hyper::Uri>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_named_by_scheme() {
        let dir = SourceSpec::Dir("/etc/node:lb".into());
        assert_eq!("dir:/etc/node:lb".parse(), Ok(dir));
        assert_eq!("kubernetes".parse(), Ok(SourceSpec::Kubernetes));
        for bad in ["", "dir:", "/etc/node-lb", "api:", "kubernetes:"] {
            let error = bad.parse::<SourceSpec>().unwrap_err();
            assert!(error.contains("write kubernetes or dir:PATH"), "{error}");
        }
    }
}
