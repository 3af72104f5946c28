//! The configuration file. Its settings become command line arguments, so that names, values and
//! defaults are defined only once.

use std::{ffi::OsString, fmt, fs, path::Path};

use anyhow::{Context, anyhow, bail};
use clap::{Args, Command};
use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, SeqAccess, Visitor},
};
use serde_saphyr::Spanned;

use super::Flags;

/// Reads `path` and returns its settings as arguments. Settings are left out if `overridden` holds
/// for the argument's id (a field of [`Flags`]).
///
/// # Errors
/// Names the file and line of what is not YAML, not a setting or not a value for it.
pub fn arguments(path: &Path, overridden: impl Fn(&str) -> bool) -> anyhow::Result<Vec<OsString>> {
    let text = fs::read_to_string(path)
        .with_context(|| format!("cannot read the configuration file {}", path.display()))?;
    // Only true and false are booleans; `off` stays a word.
    let options = serde_saphyr::options! { strict_booleans: true };
    let settings: Settings = serde_saphyr::from_str_with_options(&text, options)
        .map_err(|error| anyhow!("{}: {}", path.display(), error.without_snippet()))?;
    let flags = Flags::augment_args(Command::new("settings").no_binary_name(true));

    let mut arguments = Vec::new();
    for (name, Values(values)) in settings.0 {
        let place = format!("{}:{}", path.display(), name.referenced.line());
        let name = name.value;
        let known = flags.get_arguments().find(|flag| {
            flag.get_long() == Some(&name)
                || flag
                    .get_all_aliases()
                    .into_iter()
                    .flatten()
                    .any(|alias| alias == name)
        });
        let Some(flag) = known.filter(|flag| flag.get_id() != "config") else {
            bail!("{place}: unknown setting {name:?}; settings are named like the flags");
        };

        let of_setting: Vec<_> = values
            .iter()
            .map(|value| OsString::from(format!("--{name}={value}")))
            .collect();
        if let Err(error) = flags.clone().try_get_matches_from(&of_setting) {
            bail!("{place}: {}", first_paragraph(&error));
        }
        if !overridden(flag.get_id().as_str()) {
            arguments.extend(of_setting);
        }
    }
    Ok(arguments)
}

/// Clap's message, without its advice about command lines.
fn first_paragraph(error: &clap::Error) -> String {
    let text = error.to_string();
    let paragraph = text.split("\n\n").next().unwrap_or(&text);
    let lines: Vec<_> = paragraph.lines().map(str::trim).collect();
    lines.join(" ").trim_start_matches("error: ").to_owned()
}

/// The file's settings in order, with the place of each.
struct Settings(Vec<(Spanned<String>, Values)>);

impl<'de> Deserialize<'de> for Settings {
    fn deserialize<D: Deserializer<'de>>(file: D) -> Result<Self, D::Error> {
        struct FileVisitor;

        impl<'de> Visitor<'de> for FileVisitor {
            type Value = Settings;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a mapping of settings")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Settings, A::Error> {
                let mut settings = Vec::new();
                while let Some(setting) = map.next_entry()? {
                    settings.push(setting);
                }
                Ok(Settings(settings))
            }

            fn visit_unit<E>(self) -> Result<Settings, E> {
                Ok(Settings(Vec::new()))
            }
        }

        file.deserialize_any(FileVisitor)
    }
}

/// A setting's values as text: one for a scalar, one per item for a list, none for null.
struct Values(Vec<String>);

impl<'de> Deserialize<'de> for Values {
    fn deserialize<D: Deserializer<'de>>(setting: D) -> Result<Self, D::Error> {
        struct ValuesVisitor;

        impl<'de> Visitor<'de> for ValuesVisitor {
            type Value = Values;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value or a list of values")
            }

            fn visit_str<E>(self, value: &str) -> Result<Values, E> {
                Ok(Values(vec![value.to_owned()]))
            }

            fn visit_bool<E>(self, value: bool) -> Result<Values, E> {
                Ok(Values(vec![value.to_string()]))
            }

            fn visit_i64<E>(self, value: i64) -> Result<Values, E> {
                Ok(Values(vec![value.to_string()]))
            }

            fn visit_u64<E>(self, value: u64) -> Result<Values, E> {
                Ok(Values(vec![value.to_string()]))
            }

            fn visit_f64<E>(self, value: f64) -> Result<Values, E> {
                Ok(Values(vec![value.to_string()]))
            }

            fn visit_unit<E>(self) -> Result<Values, E> {
                Ok(Values(Vec::new()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Values, A::Error> {
                let mut values = Vec::new();
                while let Some(Values(items)) = list.next_element()? {
                    values.extend(items);
                }
                Ok(Values(values))
            }
        }

        setting.deserialize_any(ValuesVisitor)
    }
}
