//! SPEX expressions, the values of parameters.

use super::scan::{Kind, Token};
use super::{At, Scope, Trouble};

/// A parser and evaluator of expressions, given as tokens.
pub(super) struct Reader<'t, 's, 'g> {
    pub(super) tokens: &'t [Token],
    pub(super) next: usize,
    pub(super) scope: &'s Scope<'g>,
}

/// The deepest nesting of brackets and operators.
const DEEPEST: usize = 64;

/// The precedence level of `**`.
const POWER: usize = 5;

impl Reader<'_, '_, '_> {
    fn token(&self) -> &Token {
        &self.tokens[self.next.min(self.tokens.len() - 1)]
    }

    fn at(&self) -> At {
        self.token().at
    }

    fn takes(&mut self, mark: &str) -> bool {
        let found = matches!(self.token().kind, Kind::Mark(own) if own == mark);
        self.next += usize::from(found);
        found
    }

    /// Parses one value or several: `[a, b, c]`, or `[from : to, step]`.
    pub(super) fn values(&mut self) -> Result<Vec<f64>, Trouble> {
        if !self.takes("[") {
            return Ok(vec![self.value(0)?]);
        }
        let mut values = vec![self.value(0)?];
        if self.takes(":") {
            let at = self.at();
            let to = self.value(0)?;
            let step = if self.takes(",") { self.value(0)? } else { 1.0 };
            let count = ((to - values[0]) / step + 1e-9).floor();
            if !(step != 0.0 && (0.0..=10_000.0).contains(&count)) {
                return Err(at.says("a range has an end that its step leads to, in at most 10000 steps"));
            }
            let first = values[0];
            values = (0..=count as usize).map(|turn| first + step * turn as f64).collect();
        }
        while self.takes(",") {
            values.push(self.value(0)?);
        }
        let at = self.at();
        if self.takes("]") { Ok(values) } else { Err(at.says("`]` is missing")) }
    }

    /// Parses one value.
    fn value(&mut self, depth: usize) -> Result<f64, Trouble> {
        let condition = self.binary(0, depth)?;
        if !self.takes("?") {
            return Ok(condition);
        }
        let yes = self.value(depth + 1)?;
        let at = self.at();
        if !self.takes(":") {
            return Err(at.says("`:` is missing: `condition ? this : that`"));
        }
        let no = self.value(depth + 1)?;
        Ok(if condition == 0.0 { no } else { yes })
    }

    /// Parses operators of at least this precedence level.
    fn binary(&mut self, level: usize, depth: usize) -> Result<f64, Trouble> {
        const LEVELS: [&[&str]; 6] =
            [&["|"], &["&"], &["==", "!=", "<=", ">=", "<", ">"], &["+", "-"], &["*", "/", "%"], &["**"]];
        if depth > DEEPEST {
            return Err(self.at().says("this is nested too deeply"));
        }
        let Some(marks) = LEVELS.get(level) else { return self.unary(depth) };
        let mut left = self.binary(level + 1, depth)?;
        loop {
            // In `a -1`, the scanner has taken the sign as part of the number.
            if level == 3 && matches!(self.token().kind, Kind::Number(value, _) if value.is_sign_negative()) {
                left += self.binary(level + 1, depth)?;
                continue;
            }
            let Some(mark) = marks.iter().find(|mark| self.takes(mark)) else { return Ok(left) };
            let right = self.binary(if level == POWER { level } else { level + 1 }, depth + 1)?;
            let truth = |holds: bool| if holds { 1.0 } else { 0.0 };
            left = match *mark {
                "|" => truth(left != 0.0 || right != 0.0),
                "&" => truth(left != 0.0 && right != 0.0),
                "==" => truth(left == right),
                "!=" => truth(left != right),
                "<=" => truth(left <= right),
                ">=" => truth(left >= right),
                "<" => truth(left < right),
                ">" => truth(left > right),
                "+" => left + right,
                "-" => left - right,
                "*" => left * right,
                "/" => left / right,
                "%" => left % right,
                _ => left.powf(right),
            };
        }
    }

    fn unary(&mut self, depth: usize) -> Result<f64, Trouble> {
        if depth > DEEPEST {
            return Err(self.at().says("this is nested too deeply"));
        }
        // A power binds more tightly than a sign.
        if self.takes("-") {
            return Ok(-self.binary(POWER, depth + 1)?);
        }
        if self.takes("!") {
            return Ok(if self.unary(depth + 1)? == 0.0 { 1.0 } else { 0.0 });
        }
        if self.takes("(") {
            let value = self.value(depth + 1)?;
            let at = self.at();
            return if self.takes(")") { Ok(value) } else { Err(at.says("`)` is missing")) };
        }
        let Token { kind, at } = self.token().clone();
        self.next += 1;
        match kind {
            Kind::Number(value, _) if value.is_sign_negative() && self.takes("**") => {
                Ok(-(-value).powf(self.binary(POWER, depth + 1)?))
            }
            Kind::Number(value, _) => Ok(value),
            Kind::Variable(name) => self.scope.value(&name, at),
            Kind::Word(name) => self.function(&name, at, depth),
            _ => {
                self.next -= 1;
                Err(at.says("expected a number, a parameter such as `$x`, or `(`"))
            }
        }
    }

    fn function(&mut self, name: &str, at: At, depth: usize) -> Result<f64, Trouble> {
        let function = FUNCTIONS.into_iter().find(|(own, _)| *own == name);
        let Some((_, function)) = function else {
            let names = FUNCTIONS.map(|(name, _)| name).join(", ");
            return Err(at.says(format!("no function `{name}`; there are {names}")));
        };
        if !self.takes("(") {
            return Err(self.at().says(format!("`(` is missing after `{name}`")));
        }
        let mut values = vec![self.value(depth + 1)?];
        while self.takes(",") {
            values.push(self.value(depth + 1)?);
        }
        let end = self.at();
        if !self.takes(")") {
            return Err(end.says("`)` is missing"));
        }
        let count = match function {
            Function::One(_) => "one value",
            Function::Two(_) => "two values",
            Function::Many(_) => "",
        };
        match (function, values.as_slice()) {
            (Function::One(of), [value]) => Ok(of(*value)),
            (Function::Two(of), [one, other]) => Ok(of(*one, *other)),
            (Function::Many(of), values) => Ok(values.iter().copied().reduce(of).unwrap_or_default()),
            _ => Err(at.says(format!("`{name}` is of {count}"))),
        }
    }
}

/// A function, by its number of arguments.
#[derive(Clone, Copy)]
enum Function {
    One(fn(f64) -> f64),
    Two(fn(f64, f64) -> f64),
    /// Any number of arguments, folded in pairs.
    Many(fn(f64, f64) -> f64),
}

/// The functions of SPEX, and the others of a calculator. Angles are in radians.
const FUNCTIONS: [(&str, Function); 19] = [
    ("abs", Function::One(f64::abs)),
    ("ceil", Function::One(f64::ceil)),
    ("floor", Function::One(f64::floor)),
    ("round", Function::One(f64::round)),
    ("exp", Function::One(f64::exp)),
    ("log", Function::One(f64::ln)),
    ("log10", Function::One(f64::log10)),
    ("sqrt", Function::One(f64::sqrt)),
    ("sin", Function::One(f64::sin)),
    ("cos", Function::One(f64::cos)),
    ("tan", Function::One(f64::tan)),
    ("asin", Function::One(f64::asin)),
    ("acos", Function::One(f64::acos)),
    ("atan", Function::One(f64::atan)),
    ("atan2", Function::Two(f64::atan2)),
    ("pow", Function::Two(f64::powf)),
    ("fmod", Function::Two(|one, other| one % other)),
    ("min", Function::Many(f64::min)),
    ("max", Function::Many(f64::max)),
];

#[cfg(test)]
mod tests {
    use super::super::scan::tokens;
    use super::*;

    fn values(text: &str) -> Result<Vec<f64>, Trouble> {
        let tokens = tokens(text)?;
        let mut scope = Scope::default();
        scope.declare("x", vec![3.0]);
        Reader { tokens: &tokens, next: 0, scope: &scope }.values()
    }

    #[test]
    fn operators_bind_as_in_school() {
        for (text, value) in [
            ("1 + 2 * 3", 7.0),
            ("(1 + 2) * 3", 9.0),
            ("2 ** 3 ** 2", 512.0),
            ("-$x + 5", 2.0),
            ("$x -1", 2.0),
            ("5 -2**2", 1.0),
            ("5-2**2*3", -7.0),
            ("-2 ** 2", -4.0),
            ("-$x ** 2", -9.0),
            ("2 ** -1", 0.5),
            ("2 ** -$x * 8", 1.0),
            ("10 - 4 - 3", 3.0),
            ("$x > 2 & $x < 4 ? 7 : 8", 7.0),
            ("sqrt(16) / 2", 2.0),
            ("!0", 1.0),
            ("pow(2, 3) + min(4, $x, 7)", 11.0),
            ("max(1) + max($x, 2)", 4.0),
            ("cos(0) + sin(0) + atan2(0, 1)", 1.0),
        ] {
            assert_eq!(values(text).unwrap(), [value], "{text}");
        }
        assert_eq!(values("[1, 2, $x * 2]").unwrap(), [1.0, 2.0, 6.0]);
        assert_eq!(values("[1 : 2, 0.25]").unwrap(), [1.0, 1.25, 1.5, 1.75, 2.0]);
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, why) in [
            ("$y", "`$y` has no value"),
            ("1 +", "expected a number"),
            ("(1", "`)` is missing"),
            ("rand(1)", "no function `rand`"),
            ("pow(2)", "`pow` is of two values"),
            ("sqrt(2, 3)", "`sqrt` is of one value"),
            ("min()", "expected a number"),
            ("[1 : 2, 0]", "a range"),
        ] {
            let trouble = values(text).unwrap_err();
            assert!(trouble.message.contains(why), "{text}: {trouble}");
        }
        let deep = "(".repeat(100_000);
        assert!(values(&deep).unwrap_err().message.contains("too deeply"));
    }
}
