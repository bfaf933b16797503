//! `strategy`: a name, or a table with the name and its settings. Names, settings, bounds and defaults come
//! from the list in the brain, so that a new strategy needs nothing here.

use std::borrow::Cow;
use std::collections::BTreeMap;

use plimsoll_brain::{StrategyParams, strategy};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::ExpressionText;
use super::text::TextValue;

/// The strategy by which a member is chosen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum StrategyConfig {
    /// The strategy with its defaults.
    Name(String),
    /// One name, with the settings that differ from the defaults.
    Table(BTreeMap<String, BTreeMap<String, StrategySetting>>),
}

/// One setting of a strategy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum StrategySetting {
    /// A knob.
    Number(f64),
    /// An expression.
    Text(String),
}

impl StrategySetting {
    fn number(&self) -> Option<f64> {
        match self {
            Self::Number(number) => Some(*number),
            Self::Text(_) => None,
        }
    }
}

/// The one setting of the strategy that is an expression.
const WEIGHT: &str = "weight";

/// The default strategy.
const DEFAULT: &str = "adaptive";

impl Default for StrategyConfig {
    fn default() -> Self {
        Self::Name(DEFAULT.into())
    }
}

impl StrategyConfig {
    /// Returns the name as written, without settings.
    pub fn name(&self) -> &str {
        match self {
            Self::Name(name) => name,
            Self::Table(table) => table.keys().next().map_or("", String::as_str),
        }
    }

    /// Returns the strategy and all its settings; `None` for an unknown strategy.
    pub fn find(&self) -> Option<(&'static strategy::Strategy, StrategyParams)> {
        if self.weight().is_some() {
            return Some((strategy::EXPRESSION, StrategyParams::defaults(strategy::EXPRESSION)));
        }
        let definition = strategy::find(self.name())?;
        let mut params = StrategyParams::defaults(definition);
        if let Self::Table(table) = self {
            for (value, param) in params.0.iter_mut().zip(definition.params) {
                if let Some(setting) =
                    table.get(definition.name).and_then(|setting| setting.get(param.name)?.number())
                {
                    *value = setting;
                }
            }
        }
        Some((definition, params))
    }

    /// Returns the expression that gives members their weights, if that is the strategy.
    pub fn weight(&self) -> Option<ExpressionText> {
        let Self::Table(table) = self else { return None };
        match table.get(strategy::EXPRESSION.name)?.get(WEIGHT)? {
            StrategySetting::Text(text) => Some(ExpressionText(text.clone())),
            StrategySetting::Number(_) => None,
        }
    }

    /// Returns the strategy with every setting written out.
    pub fn with_defaults(&self) -> Self {
        match self.find() {
            Some((definition, params)) if !definition.params.is_empty() => {
                let names = definition.params.iter().map(|param| param.name.to_owned());
                let settings = params.0.into_iter().map(StrategySetting::Number);
                Self::Table(BTreeMap::from([(definition.name.to_owned(), names.zip(settings).collect())]))
            }
            Some(_) if self.weight().is_some() => self.clone(),
            _ => Self::Name(self.name().to_owned()),
        }
    }
}

impl JsonSchema for StrategyConfig {
    fn schema_name() -> Cow<'static, str> {
        "Strategy".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let mut choices: Vec<Value> = Vec::new();
        let mut table_schemas = Map::new();
        for definition in strategy::ALL {
            choices.push(json!({
                "type": "string",
                "const": definition.name,
                "description": definition.about,
                "x-noun": "strategy",
            }));
            let param_schemas: Map<String, Value> = definition
                .params
                .iter()
                .map(|param| {
                    let schema = json!({
                        "type": "number",
                        "description": param.about,
                        "default": param.default,
                        "minimum": param.min,
                        "maximum": param.max,
                    });
                    (param.name.to_owned(), schema)
                })
                .collect();
            let table = json!({
                "type": "object",
                "description": definition.about,
                "properties": param_schemas,
                "additionalProperties": false,
            });
            table_schemas.insert(definition.name.to_owned(), table);
        }
        let weight = json!({
            "type": "string",
            "title": "a name or an expression",
            "description": "Gives each member its weight, out of what it reports and what the balancer sees. \
                Made \
                anew several times a second.",
            "format": <ExpressionText as TextValue>::FORMAT,
            "examples": ["capacity / (1 + cpu)"],
        });
        let table = json!({
            "type": "object",
            "description": strategy::EXPRESSION.about,
            "properties": { WEIGHT: weight },
            "required": [WEIGHT],
            "additionalProperties": false,
        });
        table_schemas.insert(strategy::EXPRESSION.name.to_owned(), table);
        choices.push(json!({
            "type": "object",
            "properties": table_schemas,
            "additionalProperties": false,
            "minProperties": 1,
            "maxProperties": 1,
            "x-noun": "strategy",
        }));
        let mut schema = Map::new();
        schema.insert("description".into(), "How a member is chosen.".into());
        schema.insert("anyOf".into(), choices.into());
        schema.into()
    }
}
