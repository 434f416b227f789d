package model

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/outboxgen/outboxgen/generator/diag"
	"github.com/outboxgen/outboxgen/generator/spec"
)

var enumPattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$`)

// maxEnumValue is how many bytes a value may have whose constant is named by go.
const maxEnumValue = 200

func (b *builder) enumValues(values []spec.EnumValue, t *Type, where string) {
	first := make(map[string]diag.Pos, len(values))
	for _, given := range values {
		v := given.Value
		if !v.Set() {
			continue
		}
		if pos, twice := first[v.V]; twice {
			b.Errorf(v.Pos, diag.EnumDuplicate, "enum: duplicate value %s in %s: the first one is at line %d", spec.Show(v.V),
				where, pos.Line)
			continue
		}
		first[v.V] = v.Pos
		name, ok := b.enumConstant(given, where)
		if !ok {
			continue
		}
		value := EnumValue{Value: v.V, GoName: t.GoName + name}
		t.Values = append(t.Values, value)
		if t.GoName == "" {
			continue
		}
		self := &decl{what: "value " + spec.Show(v.V) + " of " + where, pos: nameOrGo(v, given.Go)}
		if !given.Go.Set() {
			self.fix = fmt.Sprintf("name its constant, as in {value: %q, go: %s2}", v.V, name)
		}
		b.declareShared(self, value.GoName)
	}
}

// enumConstant returns what the constant of a value is called after the name of its enum.
func (b *builder) enumConstant(v spec.EnumValue, where string) (string, bool) {
	text := v.Value.V
	switch {
	case !v.Go.Set() && enumPattern.MatchString(text):
		return camel(text), true
	case !v.Go.Set():
		comma := ""
		if strings.Contains(strings.TrimSpace(text), " ") {
			comma = "put a comma between two values, or "
		}
		b.Errorf(v.Value.Pos, diag.EnumBadValue,
			"enum: %q of %s cannot be turned into the name of a Go constant: %sname the constant, as in {value: %q, go: %s}",
			text, where, comma, text, constantFor(text))
		return "", false
	case len(text) > maxEnumValue || strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }):
		b.Errorf(v.Value.Pos, diag.EnumBadValue, "enum: %q is not a valid value of %s: use up to %d bytes of printable text",
			text, where, maxEnumValue)
		return "", false
	}
	return b.goName(v.Value, v.Go), goNamePattern.MatchString(v.Go.V)
}

// hasEmptyValue reports whether t is an enum one of whose values is "".
func (t *Type) hasEmptyValue() bool {
	return slices.ContainsFunc(t.Values, func(v EnumValue) bool { return v.Value == "" })
}

// constantFor proposes the name of a constant for a value that cannot be turned into one.
func constantFor(value string) string {
	words := strings.Map(func(r rune) rune {
		if r < 0x80 && (unicode.IsLetter(r) || unicode.IsDigit(r)) {
			return r
		}
		return '_'
	}, value)
	switch name := camel(words); {
	case value == "":
		return "None"
	case goNamePattern.MatchString(name) && len(words) == len(value):
		return name
	}
	return "SomeName"
}

// scalarBounds sets the bounds of a shared scalar, and reports bounds of any other type.
func (b *builder) scalarBounds(s *spec.Type, t *Type, where string) {
	bounds := &spec.Field{Min: s.Min, Max: s.Max, MinLen: s.MinLen, MaxLen: s.MaxLen, Pattern: s.Pattern}
	if f := t.Scalar; f != nil {
		b.bounds(bounds, f, where)
		b.lengths(bounds, f, where)
		b.pattern(bounds, f, where)
		return
	}
	for _, given := range []struct {
		key string
		pos diag.Pos
	}{{"min", s.Min.Pos}, {
		"max", s.Max.Pos,
	}, {"min_len", s.MinLen.Pos}, {"max_len", s.MaxLen.Pos}, {"pattern", s.Pattern.Pos}} {
		if given.pos.IsValid() {
			b.Errorf(given.pos, diag.AttributeType, "%s: does not apply to %s: only a type with scalar can have bounds",
				given.key, where)
		}
	}
}

// elsewhere returns where the bounds of a field belong when its type is a shared scalar.
func elsewhere(f *Field) string {
	if f.Type.Kind == Named && f.Type.Type.Scalar != nil {
		return ": set it on type " + f.Type.Type.Name
	}
	return ""
}
