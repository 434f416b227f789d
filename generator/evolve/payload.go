package evolve

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/outboxgen/outboxgen/generator/diag"
	"github.com/outboxgen/outboxgen/generator/model"
	"github.com/outboxgen/outboxgen/generator/spec"
)

// section is a struct of the YAML: a payload, or the fields of a shared type.
type section struct {
	what   string // payload, or type usage
	pos    diag.Pos
	fields []*spec.Field
}

// field returns the source of a field, the zero Field when it is unknown.
func (s section) field(name string) *spec.Field {
	for _, f := range s.fields {
		if f.Name.V == name {
			return f
		}
	}
	return &spec.Field{}
}

func (c *comparison) fields(old, now []*model.Field, in section) {
	for _, was := range old {
		is := named(now, was.Name)
		if is == nil {
			c.changed(in.pos, diag.ChangeFieldRemoved, "%s: field %s was removed%s", in.what, was.Name, renamed(was, old, now))
			continue
		}
		c.field(was, is, in)
	}
	for _, is := range now {
		if !is.Optional && named(old, is.Name) == nil {
			c.changed(in.field(is.Name).Name.Pos, diag.ChangeFieldAdded,
				"%s: required field %s was added, which stored events lack: make it optional with a ?", in.what, is.Name)
		}
	}
}

func named(fields []*model.Field, name string) *model.Field {
	i := slices.IndexFunc(fields, func(f *model.Field) bool { return f.Name == name })
	if i < 0 {
		return nil
	}
	return fields[i]
}

// renamed returns a hint if exactly one new field can be the old one under another name.
func renamed(was *model.Field, old, now []*model.Field) string {
	var candidates []string
	for _, f := range now {
		if named(old, f.Name) == nil && f.Type.String() == was.Type.String() && f.Optional == was.Optional {
			candidates = append(candidates, f.Name)
		}
	}
	if len(candidates) != 1 {
		return ""
	}
	return fmt.Sprintf(", or renamed to %s", candidates[0])
}

func (c *comparison) field(was, is *model.Field, in section) {
	s := in.field(is.Name)
	what := in.what + ": field " + is.Name
	if was.Optional != is.Optional {
		kind := map[bool]string{true: "optional", false: "required"}
		pos := s.Optional.Pos
		if !pos.IsValid() {
			pos = s.Type.Pos
		}
		c.changed(pos, diag.ChangeFieldOptional, "%s is now %s and was %s", what, kind[is.Optional], kind[was.Optional])
	}
	if was.Sealed != is.Sealed && !c.now.Sealed { // of a topic that is sealed, no field is sealed by itself
		pos := s.Sensitive.Pos
		if !pos.IsValid() {
			pos = s.Name.Pos
		}
		c.changed(pos, diag.ChangeSealed, "%s is now %s and was %s", what, openOrSealed(is.Sealed), openOrSealed(was.Sealed))
	}
	if was.GoName != is.GoName {
		pos := s.Go.Pos
		if !pos.IsValid() {
			pos = s.Name.Pos
		}
		c.goName(pos, what, was.GoName, is.GoName)
	}
	if !c.typeRef(was.Type, is.Type, what, s.Type.Pos) {
		c.changed(s.Type.Pos, diag.ChangeFieldType, "%s is now of type %s and was of type %s", what, is.Type, was.Type)
		return
	}
	c.bounds(was, is, what, s.Type.Pos, bounds{s.Min.Pos, s.Max.Pos, s.MinLen.Pos, s.MaxLen.Pos, s.Pattern.Pos})
}

func openOrSealed(sealed bool) string {
	if sealed {
		return "sealed"
	}
	return "open"
}

// typeRef compares the type of what, at pos, and returns whether it has the same shape. The parts of shared types are
// compared where they are declared.
func (c *comparison) typeRef(was, is model.TypeRef, what string, pos diag.Pos) bool {
	if formOf(was) != formOf(is) {
		return false
	}
	if was.Elem != nil {
		if !c.typeRef(*was.Elem, *is.Elem, what, pos) {
			return false
		}
		c.bounds(&model.Field{Type: *was.Elem}, &model.Field{Type: *is.Elem}, what, pos, bounds{})
		return true
	}
	if before, after := goType(was), goType(is); before != after {
		c.goName(pos, "the type of "+what, before, after)
	}
	if was.Type == nil || is.Type == nil || was.Type.Scalar != nil {
		return true
	}
	pair := [2]*model.Type{was.Type, is.Type}
	if c.visited[pair] {
		return true
	}
	if c.visited == nil {
		c.visited = make(map[[2]*model.Type]bool)
	}
	c.visited[pair] = true
	name := "type " + is.Type.Name
	s := c.types[is.Type.Name]
	if s == nil {
		s = &spec.Type{}
	}
	if !is.Type.IsEnum() {
		c.fields(was.Type.Fields, is.Type.Fields, section{what: name, pos: s.Fields.Pos, fields: s.Fields.Items})
		return true
	}
	for _, v := range was.Type.Values {
		i := slices.IndexFunc(is.Type.Values, func(have model.EnumValue) bool { return have.Value == v.Value })
		if i < 0 {
			c.changed(s.Enum.Pos, diag.ChangeEnumValue, "%s: value %q was removed", name, v.Value)
		} else if now := is.Type.Values[i]; was.Type.GoName == is.Type.GoName && now.GoName != v.GoName {
			c.goName(valuePos(s, v.Value), fmt.Sprintf("%s: value %q", name, v.Value), v.GoName, now.GoName)
		}
	}
	return true
}

func valuePos(s *spec.Type, value string) diag.Pos {
	for _, v := range s.Enum.Items {
		if v.Value.V == value {
			return v.Value.Pos
		}
	}
	return s.Enum.Pos
}

// form is the shape of a type in JSON, together with its meaning: a duration and an int64 are both numbers, but not the
// same. The shape of elements is not part of it.
type form string

func formOf(r model.TypeRef) form {
	if r.Kind != model.Named {
		return form(r.Kind)
	}
	switch {
	case r.Type.IsEnum():
		return "enum"
	case r.Type.Scalar != nil:
		return form(r.Type.Scalar.Type.Kind)
	}
	return "struct"
}

// goType returns the Go name of a shared type, or the YAML name of a built-in one.
func goType(r model.TypeRef) string {
	if r.Type != nil {
		return r.Type.GoName
	}
	return string(r.Kind)
}

// bounds are the places of the bounds of a field.
type bounds struct{ min, max, minLen, maxLen, pattern diag.Pos }

// bounds compares the rules of what, a field or an element of one shape, which are those of its shared scalar if it has
// one.
func (c *comparison) bounds(was, is *model.Field, what string, pos diag.Pos, at bounds) {
	if is.Type.Type != nil && is.Type.Type.Scalar != nil {
		if s := c.types[is.Type.Type.Name]; s != nil {
			pos, at = s.Name.Pos, bounds{s.Min.Pos, s.Max.Pos, s.MinLen.Pos, s.MaxLen.Pos, s.Pattern.Pos}
		}
		what = "type " + is.Type.Type.Name
	}
	optional := was.Optional && is.Optional
	was, is = ruled(was), ruled(is)
	narrowed := func(at diag.Pos, key, old, now string) {
		if !at.IsValid() {
			at = pos
		}
		if old == "" {
			c.changed(at, diag.ChangeBounds, "%s: %s: %s was added", what, key, now)
			return
		}
		c.changed(at, diag.ChangeBounds, "%s: %s: changed from %s to %s", what, key, old, now)
	}
	kind := is.Type.Kind
	if above(floor(kind, is.Min), floor(kind, was.Min)) {
		narrowed(at.min, "min", limit(kind, was.Min), limit(kind, is.Min))
	}
	if above(ceiling(kind, was.Max), ceiling(kind, is.Max)) {
		narrowed(at.max, "max", limit(kind, was.Max), limit(kind, is.Max))
	}
	least := 0
	if optional && (kind == model.List || kind == model.Map || kind == model.Bytes) {
		least = 1 // an empty one is left out
	}
	if shortest(is, least) > shortest(was, least) {
		narrowed(at.minLen, "min_len", length(was.MinLen), length(is.MinLen))
	}
	if longest(is) < longest(was) {
		narrowed(at.maxLen, "max_len", length(was.MaxLen), length(is.MaxLen))
	}
	if is.Pattern != "" && is.Pattern != was.Pattern {
		old := ""
		if was.Pattern != "" {
			old = fmt.Sprintf("%q", was.Pattern)
		}
		narrowed(at.pattern, "pattern", old, fmt.Sprintf("%q", is.Pattern))
	}
}

// ruled returns the field that has the rules of f: that of a shared scalar, or f.
func ruled(f *model.Field) *model.Field {
	if f.Type.Type != nil && f.Type.Type.Scalar != nil {
		return f.Type.Type.Scalar
	}
	return f
}

// floor returns a minimum, or the smallest value of the type.
func floor(kind model.Kind, v any) any {
	switch {
	case v != nil:
		return v
	case kind == model.Int32:
		return int64(math.MinInt32)
	case kind == model.Float64:
		return -math.MaxFloat64
	}
	return int64(math.MinInt64)
}

// ceiling returns a maximum, or the largest value of the type.
func ceiling(kind model.Kind, v any) any {
	switch {
	case v != nil:
		return v
	case kind == model.Int32:
		return int64(math.MaxInt32)
	case kind == model.Float64:
		return math.MaxFloat64
	}
	return int64(math.MaxInt64)
}

// above reports whether a is above b, which is of the same type.
func above(a, b any) bool {
	switch a := a.(type) {
	case int64:
		return a > b.(int64)
	case float64:
		return a > b.(float64)
	}
	return false
}

func shortest(f *model.Field, least int) int {
	if f.MinLen == nil {
		return least
	}
	return max(*f.MinLen, least)
}

func longest(f *model.Field) int {
	if f.MaxLen == nil {
		return math.MaxInt
	}
	return *f.MaxLen
}

// limit returns a bound as the YAML writes it, "" for none.
func limit(kind model.Kind, v any) string {
	switch n, ok := v.(int64); {
	case v == nil:
		return ""
	case ok && kind == model.Duration:
		return time.Duration(n).String()
	}
	return fmt.Sprint(v)
}

func length(n *int) string {
	if n == nil {
		return ""
	}
	return fmt.Sprint(*n)
}
