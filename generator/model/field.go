package model

import (
	"math"
	"regexp/syntax"
	"slices"
	"time"

	"github.com/outboxgen/outboxgen/generator/diag"
	"github.com/outboxgen/outboxgen/generator/spec"
)

// fields returns a Field for each of specs, in their order. A refused field is included, without a Kind.
// Methods are the Go methods that the struct has with any fields.
func (b *builder) fields(specs []*spec.Field, owner string, methods ...string) []*Field {
	members := b.newSymbols()
	fields := make([]*Field, 0, len(specs))
	for _, s := range specs {
		where := "field " + spec.Show(s.Name.V) + " of " + owner
		f := &Field{Name: s.Name.V, Doc: PlainText(s.Doc.V), Sensitive: s.Sensitive.V != spec.Open,
			Sealed: s.Sensitive.V == spec.Sealed}
		fields = append(fields, f)
		if b.checkName(s.Name, "field") {
			f.GoName = b.goName(s.Name, s.Go)
			members.declare(&decl{what: where, pos: nameOrGo(s.Name, s.Go)}, f.GoName)
		}
		if !s.Type.Set() {
			continue
		}
		var marked bool
		f.Type, marked = b.typeRef(s.Type, where)
		f.Optional = marked || s.Optional.V
		if marked && s.Optional.Set() && !s.Optional.V {
			b.Errorf(s.Optional.Pos, diag.AttributeConflict, "optional: false contradicts the ? in the type of %s", where)
		}
		if f.Type.Kind != "" {
			b.bounds(s, f, where)
			b.lengths(s, f, where)
			b.pattern(s, f, where)
		}
	}
	b.structs = append(b.structs, structure{owner, specs, fields, methods})
	return fields
}

// structure is a Go struct that will be generated.
type structure struct {
	owner   string
	specs   []*spec.Field
	fields  []*Field
	methods []string
}

// maskingMethods are the methods of a struct with sensitive values, which keep fmt and slog from showing them.
var maskingMethods = []string{"Format", "LogValue"}

// checkMethods reports fields whose Go name is a method of their struct. It runs last, because the types of its fields
// decide whether a struct masks sensitive values.
func (b *builder) checkMethods() {
	known := make(map[*Type]bool)
	for _, s := range b.structs {
		methods := s.methods
		if holdsSensitive(s.fields, known) {
			methods = append(slices.Clone(methods), maskingMethods...)
		}
		for i, f := range s.fields {
			if slices.Contains(methods, f.GoName) {
				b.Errorf(nameOrGo(s.specs[i].Name, s.specs[i].Go), diag.NameCollision,
					"field %s of %s: the Go name %s is a method of its struct: rename the field, or set its go: name",
					spec.Show(f.Name), s.owner, f.GoName)
			}
		}
	}
}

// holdsSensitive reports whether a field is sensitive at any depth. Known holds the answer for the types
// that were visited, and false for a type that is being visited, which ends the recursion.
func holdsSensitive(fields []*Field, known map[*Type]bool) bool {
	return slices.ContainsFunc(fields, func(f *Field) bool {
		inner := f.Type.named()
		if f.Sensitive || inner == nil {
			return f.Sensitive
		}
		if _, seen := known[inner]; !seen {
			known[inner] = false
			known[inner] = holdsSensitive(inner.Fields, known)
		}
		return known[inner]
	})
}

// HasSealed reports whether a field is sealed at any depth. Types are not recursive.
func HasSealed(fields []*Field) bool {
	return slices.ContainsFunc(fields, func(f *Field) bool {
		inner := f.Type.named()
		return f.Sealed || inner != nil && HasSealed(inner.Fields)
	})
}

// sealedIn reports a field that is sealed and that key, which is not, is made of. It returns whether it is.
func (b *builder) sealedIn(pos diag.Pos, key string, f *Field, where string) bool {
	if f.Sealed {
		b.Errorf(pos, diag.SealedKeyField,
			"%s: field %q of %s is sealed: use another field, because this is stored and sent as it is", key, f.Name, where)
	}
	return f.Sealed
}

// nameOrGo returns where to point for a finding about a Go name.
func nameOrGo(name, override spec.Value[string]) diag.Pos {
	if override.Set() {
		return override.Pos
	}
	return name.Pos
}

// bounds sets min and max of f.
func (b *builder) bounds(s *spec.Field, f *Field, where string) {
	f.Min = b.bound("min", s.Min, f, where)
	f.Max = b.bound("max", s.Max, f, where)
	crossed := false
	switch low := f.Min.(type) {
	case int64:
		high, ok := f.Max.(int64)
		crossed = ok && low > high
	case float64:
		high, ok := f.Max.(float64)
		crossed = ok && low > high
	}
	if crossed {
		b.Errorf(s.Min.Pos, diag.AttributeBounds, "min: %s is above max %s in %s", spec.Show(s.Min.V.Text),
			spec.Show(s.Max.V.Text), where)
	}
}

// bound returns a min or max as the int64 or float64 that the type of f needs, or nil.
func (b *builder) bound(key string, bound spec.Value[spec.Bound], f *Field, where string) any {
	if !bound.Set() {
		return nil
	}
	refuse := func(want string) any {
		b.Errorf(bound.Pos, diag.AttributeBounds, "%s: must be %s for %s, not %q", key, want, where, bound.V.Text)
		return nil
	}
	switch f.Type.Kind {
	case Int32, Int64:
		v, err := spec.ParseInt(bound.V.Text)
		if err != nil || !bound.V.Number {
			return refuse("a whole number of at most 64 bits")
		}
		if f.Type.Kind == Int32 && (v < math.MinInt32 || v > math.MaxInt32) {
			return refuse("a whole number of at most 32 bits")
		}
		return v
	case Float64:
		v, err := spec.ParseFloat(bound.V.Text)
		if err != nil || !bound.V.Number {
			return refuse("a finite number")
		}
		return v
	case Duration:
		v, err := time.ParseDuration(bound.V.Text)
		if err != nil || bound.V.Number {
			return refuse("a duration such as 30s")
		}
		return int64(v)
	}
	hint := ""
	if slices.Contains(lengthKinds, f.Type.Kind) {
		hint = ": use " + key + "_len"
	}
	b.Errorf(bound.Pos, diag.AttributeType, "%s: does not apply to the type %s of %s%s%s", key, f.Type, where, hint,
		elsewhere(f))
	return nil
}

// lengthKinds are the types that have a length.
var lengthKinds = []Kind{String, Bytes, List, Map}

// lengths sets min_len and max_len of f.
func (b *builder) lengths(s *spec.Field, f *Field, where string) {
	f.MinLen = b.length("min_len", s.MinLen, f, where)
	f.MaxLen = b.length("max_len", s.MaxLen, f, where)
	if f.MinLen != nil && f.MaxLen != nil && *f.MinLen > *f.MaxLen {
		b.Errorf(s.MinLen.Pos, diag.AttributeBounds, "min_len: %d is above max_len %d in %s", *f.MinLen, *f.MaxLen, where)
	}
}

func (b *builder) length(key string, length spec.Value[int64], f *Field, where string) *int {
	switch {
	case !length.Set():
		return nil
	case !slices.Contains(lengthKinds, f.Type.Kind):
		b.Errorf(length.Pos, diag.AttributeType, "%s: does not apply to the type %s of %s%s", key, f.Type, where,
			elsewhere(f))
		return nil
	case length.V < 0 || length.V > math.MaxInt32:
		b.Errorf(length.Pos, diag.AttributeBounds, "%s: %d in %s is not between 0 and %d", key, length.V, where,
			math.MaxInt32)
		return nil
	}
	n := int(length.V)
	return &n
}

// pattern sets the pattern of f. It is parsed, not compiled: regexp.Compile can fail only in its parser, and
// compiling a pattern may take much longer than parsing it.
func (b *builder) pattern(s *spec.Field, f *Field, where string) {
	if !s.Pattern.Set() {
		return
	}
	if f.Type.Kind != String {
		b.Errorf(s.Pattern.Pos, diag.AttributeType, "pattern: does not apply to the type %s of %s%s", f.Type, where,
			elsewhere(f))
		return
	}
	if _, err := syntax.Parse(s.Pattern.V, syntax.Perl); err != nil {
		b.Errorf(s.Pattern.Pos, diag.PatternInvalid, "pattern: %q of %s is not a valid regular expression (RE2): %s",
			s.Pattern.V, where, patternFault(err))
		return
	}
	f.Pattern = s.Pattern.V
}

// patternFault returns the cause of err without the pattern, which the finding already quotes.
func patternFault(err error) string {
	if fault, ok := err.(*syntax.Error); ok { // syntax.Parse documents it, unwrapped
		return fault.Code.String()
	}
	return "it does not parse"
}
