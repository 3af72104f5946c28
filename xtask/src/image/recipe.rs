//! Reads the last stage of a Containerfile, as far as node-lb uses it.

use anyhow::{Context, Result, bail};

/// The settings with which the image's files run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recipe {
    /// `NAME=VALUE`.
    pub environment: Vec<String>,
    /// `UID:GID`.
    pub user: String,
    pub entrypoint: Vec<String>,
}

impl Recipe {
    /// Reads the last stage. It must be based on `scratch`, and copy all its files from the stage
    /// `build`.
    ///
    /// # Errors
    /// Names the instruction that would lead to another image than the one assembled here.
    pub fn parse(containerfile: &str) -> Result<Self> {
        let mut recipe = Self::default();
        let mut copied = false;
        for line in last_stage(containerfile)? {
            let (instruction, value) = line.split_once(' ').unwrap_or((line, ""));
            match (instruction, value.trim()) {
                ("COPY", "--from=build /image /") if !copied => copied = true,
                ("ENV", value) if value.split_whitespace().count() == 1 => {
                    recipe.environment.push(value.to_owned());
                }
                ("USER", value) => recipe.user = value.to_owned(),
                ("ENTRYPOINT", value) => {
                    recipe.entrypoint = serde_json::from_str(value)
                        .with_context(|| format!("{line:?} is not a list of arguments"))?;
                }
                _ => bail!("`cargo xtask image` does not know how to follow {line:?}"),
            }
        }
        if !copied || recipe.user.is_empty() || recipe.entrypoint.is_empty() {
            bail!("the last stage lacks COPY, USER or ENTRYPOINT");
        }
        Ok(recipe)
    }
}

/// The instructions after the last FROM, which must be `FROM scratch`.
fn last_stage(containerfile: &str) -> Result<Vec<&str>> {
    let lines = containerfile.lines().map(str::trim);
    let lines: Vec<_> = lines
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .collect();
    let from = lines.iter().rposition(|line| line.starts_with("FROM "));
    match from.and_then(|from| lines[from..].split_first()) {
        Some((&"FROM scratch", rest)) => Ok(rest.to_vec()),
        Some((from, _)) => bail!("the last stage begins with {from:?}, not with FROM scratch"),
        None => bail!("there is no FROM"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAGES: &str = "FROM rust AS build\nUSER 1\n\n# Nothing.\nFROM scratch\n\
                          COPY --from=build /image /\nENV A=b\nUSER 0:0\nENTRYPOINT [\"/x\", \"y\"]\n";

    #[test]
    fn the_last_stage_counts() {
        let recipe = Recipe::parse(STAGES).unwrap();
        assert_eq!(recipe.user, "0:0");
        assert_eq!(recipe.environment, ["A=b"]);
        assert_eq!(recipe.entrypoint, ["/x", "y"]);
    }

    #[test]
    fn what_cannot_be_followed_is_refused() {
        for (from, to) in [
            ("FROM scratch", "FROM debian"),
            ("ENV A=b", "RUN true"),
            ("ENV A=b", "COPY other /"),
            ("[\"/x\", \"y\"]", "/x y"),
            ("USER 0:0\n", ""),
            ("FROM", "from"),
        ] {
            let text = STAGES.replace(from, to);
            assert!(Recipe::parse(&text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_image_has_what_its_containerfile_starts() {
        let recipe = Recipe::parse(include_str!("../../../deploy/Containerfile")).unwrap();
        assert_eq!(recipe.entrypoint, [format!("/{}", super::super::AGENT)]);
    }
}
