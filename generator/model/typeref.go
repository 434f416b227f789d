package model

import (
	"regexp"
	"slices"
	"strings"

	"github.com/outboxgen/outboxgen/generator/diag"
	"github.com/outboxgen/outboxgen/generator/spec"
)

// scalars are the built-in types, in the order of the documentation.
var scalars = []Kind{String, Bool, Int32, Int64, Float64, UUID, Timestamp, Date, Duration, Bytes, JSON}

// Scalars returns the built-in types, in the order of the documentation.
func Scalars() []Kind { return slices.Clone(scalars) }

// synonyms are names that other systems use for the built-in types.
var synonyms = map[string]Kind{
	"int": Int64, "integer": Int64, "long": Int64, "bigint": Int64, "uint64": Int64, "int16": Int32, "uint32": Int64,
	"float": Float64, "float32": Float64, "double": Float64, "number": Float64, "decimal": String,
	"text": String, "varchar": String, "str": String, "boolean": Bool, "guid": UUID,
	"datetime": Timestamp, "time": Timestamp, "timestamptz": Timestamp, "interval": Duration,
	"blob": Bytes, "bytea": Bytes, "binary": Bytes, "jsonb": JSON, "object": JSON, "any": JSON, "map": JSON, "dict": JSON,
	"uuid.uuid": UUID, "time.time": Timestamp, "time.duration": Duration, "json.rawmessage": JSON, "[]byte": Bytes,
	"[]uint8": Bytes,
}

// typeForms are the ways in which other languages write an optional type, a list and a map.
var typeForms = []struct {
	form *regexp.Regexp
	ours string // before the element
	mark string // behind it
}{
	{regexp.MustCompile(`^[?*]\s*(.+)$`), "", "?"},
	{regexp.MustCompile(`^(?i:optional)\s*[<\[ ]\s*(.+?)[>\]]?$`), "", "?"},
	{regexp.MustCompile(`^(.+)\?$`), "", "?"},
	{regexp.MustCompile(`^(.+)\[\s*\]$`), "[]", ""},
	{regexp.MustCompile(`^\[\s*\]\s*(.+)$`), "[]", ""},
	{regexp.MustCompile(`^\[(.+)\]$`), "[]", ""},
	{regexp.MustCompile(`^(?i:list|array|set|repeated)\s*[<\[( ]\s*(.+?)[>\])]?$`), "[]", ""},
	{regexp.MustCompile(`^(?i:map|dict|record)\s*[<\[(]\s*(?i:string|str|text)\s*,\s*(.+)[>\])]$`), "map[string]", ""},
	{regexp.MustCompile(`^(?i:map)\s*\[\s*(?i:string|str|text)\s*\]\s*(.+)$`), "map[string]", ""},
}

// typeWord matches what is looked up as the name of a type; anything else is a mistake in the grammar.
var typeWord = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.]*$`)

// maxNesting is how many [] and map[string] a type may have.
const maxNesting = 4

// typeRef parses the type of a field. The Kind of what it returns is empty after a finding.
func (b *builder) typeRef(text spec.Value[string], where string) (ref TypeRef, optional bool) {
	name, optional := strings.CutSuffix(text.V, "?")
	var nesting []Kind
	for {
		if rest, ok := strings.CutPrefix(name, "[]"); ok {
			name, nesting = rest, append(nesting, List)
		} else if rest, ok := strings.CutPrefix(name, "map[string]"); ok {
			name, nesting = rest, append(nesting, Map)
		} else {
			break
		}
	}
	switch {
	case !slices.Contains(scalars, Kind(name)) && !typeWord.MatchString(name):
		b.Errorf(text.Pos, diag.BadType,
			"type: %q of %s is not a valid type: use a name, []T or map[string]T, with a ? at the end if it is optional%s",
			text.V, where, diag.Hint(b.betterType(text.V, 0)))
		return TypeRef{}, optional
	case len(nesting) > maxNesting:
		b.Errorf(text.Pos, diag.BadType, "type: %q of %s nests deeper than %d: name the inner type under types", text.V,
			where, maxNesting)
		return TypeRef{}, optional
	case slices.Contains(scalars, Kind(name)):
		ref = TypeRef{Kind: Kind(name)}
	default:
		t, known := b.types[name]
		if !known {
			better := b.betterType(name, 0)
			if whole := b.betterType(text.V, 0); strings.TrimSuffix(whole, "?") == string(Bytes) {
				name, better = text.V, whole // []byte
			}
			b.Errorf(text.Pos, diag.UnknownType, "type: unknown type %q of %s%s", name, where, diag.Hint(better))
			return TypeRef{}, optional
		}
		ref = TypeRef{Kind: Named, Type: t}
	}
	for _, kind := range slices.Backward(nesting) {
		elem := ref
		ref = TypeRef{Kind: kind, Elem: &elem}
	}
	return ref, optional
}

// betterType returns the type that text was probably meant as. It returns "" if it finds none, or if that is text
// itself.
func (b *builder) betterType(text string, depth int) string {
	word := strings.TrimSpace(text)
	if kind, ok := synonyms[strings.ToLower(word)]; ok {
		return string(kind)
	}
	if typeWord.MatchString(word) {
		return b.Nearest(word, b.typeNames)
	}
	for _, f := range typeForms {
		part := f.form.FindStringSubmatch(word)
		if part == nil || depth > 2*maxNesting {
			continue
		}
		element := strings.TrimSpace(part[1])
		if !slices.Contains(b.typeNames, element) {
			element = b.betterType(element, depth+1)
		}
		inner, optional := strings.CutSuffix(element, "?")
		if element == "" || optional && f.ours != "" {
			return ""
		}
		if better := f.ours + inner + f.mark; better != text {
			return better
		}
		return ""
	}
	return ""
}

// named returns the shared type at the core of r, or nil.
func (r TypeRef) named() *Type {
	for r.Elem != nil {
		r = *r.Elem
	}
	return r.Type
}

// Base returns the kind of the values of r. For a shared scalar it is the kind of the built-in type below it.
func (r TypeRef) Base() Kind {
	if r.Kind == Named && r.Type.Scalar != nil {
		return r.Type.Scalar.Type.Kind
	}
	return r.Kind
}

// String returns r as the YAML writes it.
func (r TypeRef) String() string {
	switch r.Kind {
	case List:
		return "[]" + r.Elem.String()
	case Map:
		return "map[string]" + r.Elem.String()
	case Named:
		return r.Type.Name
	}
	return string(r.Kind)
}

// checkRecursion reports each shared type that contains itself, at the field that closes the circle. A list or map in
// between is not an exception: a payload has a bounded depth.
func (b *builder) checkRecursion(types []*spec.Type) {
	fields := make(map[*Type][]*spec.Field, len(types))
	for i, t := range b.model.Types {
		fields[t] = types[i].Fields.Items
	}
	var path []string
	depth := make(map[*Type]int) // of the types on the path
	done := make(map[*Type]bool)
	var visit func(t *Type)
	visit = func(t *Type) {
		depth[t] = len(path)
		path = append(path, t.Name)
		for i, f := range t.Fields {
			inner := f.Type.named()
			if inner == nil || done[inner] {
				continue
			}
			if at, open := depth[inner]; open {
				b.Errorf(fields[t][i].Type.Pos, diag.RecursiveType, "type: %s contains itself: %s", inner.Name,
					showCircle(path[at:]))
				continue
			}
			visit(inner)
		}
		path = path[:len(path)-1]
		delete(depth, t)
		done[t] = true
	}
	for _, t := range b.model.Types {
		if !done[t] {
			visit(t)
		}
	}
}

// showCircle returns "a -> b -> a", with the middle left out when it is long.
func showCircle(names []string) string {
	first := names[0]
	if len(names) > 6 {
		names = append(slices.Clone(names[:5]), "...")
	}
	return strings.Join(names, " -> ") + " -> " + first
}
