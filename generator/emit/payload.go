package emit

import (
	"slices"
	"strings"

	"github.com/dave/jennifer/jen"

	"github.com/outboxgen/outboxgen/generator/model"
)

// addStruct declares the struct name, which is what kind says ("the payload of a/b"), with a member for each field in
// the order of the YAML.
func (e *emitter) addStruct(g *jen.Group, name, kind, doc string, fields []*model.Field) {
	addComment(g, name+" is "+kind+".", userDoc(name, doc))
	g.Type().Id(name).StructFunc(func(g *jen.Group) { e.addMembers(g, fields) })
	g.Line()
}

// addMembers declares the members of a struct.
func (e *emitter) addMembers(g *jen.Group, fields []*model.Field) {
	for _, f := range fields {
		addComment(g, userDoc(f.GoName, f.Doc))
		g.Id(f.GoName).Add(e.fieldType(f)).Add(tagOf(f))
	}
}

// fieldType is the Go type of a field: a pointer when it is optional, except for types that have a nil.
func (e *emitter) fieldType(f *model.Field) *jen.Statement {
	if f.Optional && isPointer(f) {
		return jen.Op("*").Add(e.goType(f.Type))
	}
	return e.goType(f.Type)
}

// isPointer reports whether an optional field of this type is a pointer.
func isPointer(f *model.Field) bool {
	switch f.Type.Kind {
	case model.List, model.Map, model.Bytes, model.JSON:
		return false
	}
	return true
}

// goType is the Go type of a value.
func (e *emitter) goType(ref model.TypeRef) *jen.Statement {
	switch ref.Kind {
	case model.UUID:
		return jen.Qual(uuidPath, "UUID")
	case model.Timestamp:
		return jen.Qual(timePath, "Time")
	case model.Date:
		return jen.Qual(payloadPath, "Date")
	case model.Duration:
		return jen.Qual(timePath, "Duration")
	case model.Bytes:
		return jen.Index().Byte()
	case model.JSON:
		return jen.Qual(jsonPath, "RawMessage")
	case model.Named:
		return jen.Id(ref.Type.GoName)
	case model.List:
		return jen.Index().Add(e.goType(*ref.Elem))
	case model.Map:
		return jen.Map(jen.String()).Add(e.goType(*ref.Elem))
	}
	return jen.Id(string(ref.Kind)) // string, bool, int32, int64 and float64 are Go's own names
}

func tagOf(f *model.Field) jen.Code {
	name := f.Name
	if f.Optional {
		name += ",omitempty"
	}
	tags := map[string]string{"json": name}
	switch { // enqueue and outbox.MaskPayload read it
	case f.Sealed:
		tags["outbox"] = "sealed"
	case f.Sensitive:
		tags["outbox"] = "sensitive"
	}
	return jen.Tag(tags)
}

// addPayloadMasking is addMasking for a payload, all of which is sensitive if it is sealed as a whole.
func (e *emitter) addPayloadMasking(g *jen.Group, name string, fields []*model.Field, sealed bool) {
	if sealed {
		fields = slices.Clone(fields)
		for i, f := range fields {
			masked := *f
			masked.Sensitive = true
			fields[i] = &masked
		}
	}
	e.addMasking(g, payload, name, fields)
}

// addMasking declares the methods that keep sensitive values out of fmt and slog.
func (e *emitter) addMasking(g *jen.Group, self, name string, fields []*model.Field) {
	if !e.isSensitive(fields) {
		return
	}
	var masked []string
	args := []jen.Code{jen.Id("s"), jen.Id(self)}
	for _, f := range fields {
		if f.Sensitive {
			masked = append(masked, f.GoName)
			args = append(args, jen.Lit(f.GoName))
		}
	}
	what := "the sensitive values inside it masked"
	if len(masked) > 0 {
		what = enumerate(masked) + " masked"
	}
	addComment(g, "Format writes "+self+" the same way for every verb of package fmt, with "+what+".")
	g.Func().Params(jen.Id(self).Id(name)).Id("Format").Params(jen.Id("s").Qual(fmtPath, "State"),
		jen.Id("_").Rune()).Block(
		jen.Qual(payloadPath, "FormatMasked").Call(args...),
	)
	g.Line()
	addComment(g, "LogValue returns what Format writes, for package slog.")
	g.Func().Params(jen.Id(self).Id(name)).Id("LogValue").Params().Qual(slogPath, "Value").Block(
		jen.Return(jen.Qual(slogPath, "StringValue").Call(jen.Qual(fmtPath, "Sprint").Call(jen.Id(self)))),
	)
	g.Line()
}

// enumerate joins names for a sentence: "A", "A and B", "A, B and C".
func enumerate(names []string) string {
	last := len(names) - 1
	if last == 0 {
		return names[0]
	}
	return strings.Join(names[:last], ", ") + " and " + names[last]
}
