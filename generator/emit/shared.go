package emit

import (
	"strconv"

	"github.com/dave/jennifer/jen"

	"github.com/outboxgen/outboxgen/generator/model"
)

// sharedTypes renders the file of the types that payloads share.
func (e *emitter) sharedTypes(types []*model.Type) ([]byte, error) {
	f := e.newFile("types")
	for _, t := range types {
		switch {
		case t.IsEnum():
			e.addEnum(f.Group, t)
		case t.Scalar != nil:
			e.addScalar(f.Group, t)
		default:
			e.addSharedStruct(f.Group, t)
		}
	}
	return render(f)
}

func (e *emitter) addSharedStruct(g *jen.Group, t *model.Type) {
	e.addStruct(g, t.GoName, "the shared type "+t.Name, t.Doc, t.Fields)
	e.addPatterns(g, t.GoName, t.Fields)
	e.addValidate(g, "v", t.GoName, t.Name, t.Fields)
	e.addMasking(g, "v", t.GoName, t.Fields)
}

// addEnum declares an enum: a string type, its constants in YAML order and their check.
func (e *emitter) addEnum(g *jen.Group, t *model.Type) {
	doc := t.GoName + " is the shared type " + t.Name + "."
	if e.part == consumerPart {
		doc += " A newer producer may send a value that is not among the constants; Known reports whether it is."
	}
	addComment(g, doc, userDoc(t.GoName, t.Doc))
	g.Type().Id(t.GoName).String()
	g.Line()
	addComment(g, "The values of "+t.GoName+".")
	g.Const().DefsFunc(func(g *jen.Group) {
		for _, v := range t.Values {
			g.Id(v.GoName).Id(t.GoName).Op("=").Lit(v.Value)
		}
	})
	g.Line()

	values := t.GoName + "Values"
	addComment(g, values+" returns the values of "+t.GoName+", in the order of the YAML.")
	g.Func().Id(values).Params().Index().Id(t.GoName).Block(jen.Return(jen.Index().Id(t.GoName).Add(constants(t))))
	g.Line()

	parse := "Parse" + t.GoName
	addComment(g, parse+" returns the "+t.GoName+
		" whose text is s, or a *payload.ValidationError that lists the valid values.")
	g.Func().Id(parse).Params(jen.Id("s").String()).Params(jen.Id(t.GoName), jen.Error()).Block(
		jen.Return(jen.Qual(payloadPath, "ParseEnum").Call(jen.Lit(t.Name), jen.Id("s"), jen.Id(values).Call().Op("..."))),
	)
	g.Line()

	addComment(g, "Known reports whether v is one of "+values+".")
	g.Func().Params(jen.Id("v").Id(t.GoName)).Id("Known").Params().Bool().Block(
		jen.Return(jen.Qual(slicesPath, "Contains").Call(jen.Id(values).Call(), jen.Id("v"))),
	)
	g.Line()

	addComment(g, "Validate returns nil for the constants of "+t.GoName+
		", and a *payload.ValidationError for any other value.")
	g.Func().Params(jen.Id("v").Id(t.GoName)).Id("Validate").Params().Error().Block(jen.Return(e.enumCall(t)))
	g.Line()
}

// constants renders the values of an enum in braces: on one line if they are few.
func constants(t *model.Type) *jen.Statement {
	length := len("        return []{}") + len(t.GoName)
	items := make([]jen.Code, len(t.Values))
	for i, v := range t.Values {
		length += len(", ") + len(v.GoName)
		items[i] = jen.Id(v.GoName)
	}
	return jen.Custom(jen.Options{Open: "{", Close: "}", Separator: ",", Multi: length > commentWidth}, items...)
}

// addScalar declares a scalar: a distinct type, so that no other value can be used for it, with the methods that it
// would otherwise lose.
func (e *emitter) addScalar(g *jen.Group, t *model.Type) {
	const self = "v"
	kind := t.Scalar.Type.Kind
	base := e.goType(t.Scalar.Type)
	name := string(kind)
	if kind == model.UUID {
		name = "uuid.UUID"
	}
	addComment(g, t.GoName+" is the shared type "+t.Name+". Convert it with "+t.GoName+"(x) and "+name+"(v).",
		userDoc(t.GoName, t.Doc))
	g.Type().Id(t.GoName).Add(base)
	g.Line()
	if kind == model.UUID {
		e.addUUIDMethods(g, self, t)
	}
	if t.HasRules() {
		e.addPatterns(g, t.GoName, []*model.Field{t.Scalar})
		addComment(g, "Validate returns nil, or a *payload.ValidationError that lists the broken rules, without values.")
		addChecks(g, self, t.GoName, t.Name, e.valueChecks(t.Scalar, jen.Lit(""), base.Clone().Parens(jen.Id(self))))
	}
}

// addUUIDMethods declares the methods of uuid.UUID that JSON, package fmt and databases use.
func (e *emitter) addUUIDMethods(g *jen.Group, self string, t *model.Type) {
	id := func() *jen.Statement { return jen.Qual(uuidPath, "UUID") }
	value := func() *jen.Statement { return id().Parens(jen.Id(self)) }
	pointer := func() *jen.Statement { return jen.Parens(jen.Op("*").Add(id())).Parens(jen.Id(self)) }
	byValue, byPointer := jen.Id(self).Id(t.GoName), jen.Id(self).Op("*").Id(t.GoName)

	addComment(g, "Parse"+t.GoName+" reads a UUID as uuid.Parse does.")
	g.Func().Id("Parse"+t.GoName).Params(jen.Id("s").String()).Params(jen.Id(t.GoName), jen.Error()).Block(
		jen.List(jen.Id("id"), jen.Id("err")).Op(":=").Qual(uuidPath, "Parse").Call(jen.Id("s")),
		jen.Return(jen.Id(t.GoName).Parens(jen.Id("id")), jen.Id("err")),
	)
	g.Line()
	addComment(g, "String returns "+self+" in lower case with hyphens.")
	g.Func().Params(byValue).Id("String").Params().String().Block(jen.Return(value().Dot("String").Call()))
	g.Line()
	addComment(g, "MarshalText implements encoding.TextMarshaler, and so the JSON encoding.")
	g.Func().Params(byValue).Id("MarshalText").Params().Params(jen.Index().Byte(), jen.Error()).Block(
		jen.Return(value().Dot("MarshalText").Call()),
	)
	g.Line()
	addComment(g, "UnmarshalText implements encoding.TextUnmarshaler, and so the JSON decoding.")
	g.Func().Params(byPointer).Id("UnmarshalText").Params(jen.Id("text").Index().Byte()).Error().Block(
		jen.Return(pointer().Dot("UnmarshalText").Call(jen.Id("text"))),
	)
	g.Line()
	addComment(g, "Value implements driver.Valuer: "+self+" as the text of a uuid column.")
	g.Func().Params(byValue).Id("Value").Params().Params(jen.Qual(driverPath, "Value"), jen.Error()).Block(
		jen.Return(value().Dot("Value").Call()),
	)
	g.Line()
	addComment(g, "Scan implements sql.Scanner. NULL leaves "+self+" unchanged.")
	g.Func().Params(byPointer).Id("Scan").Params(jen.Id("src").Any()).Error().Block(
		jen.Return(pointer().Dot("Scan").Call(jen.Id("src"))),
	)
	g.Line()
}

// enumCall keeps short enums on one line.
func (e *emitter) enumCall(t *model.Type) *jen.Statement {
	length := len(`        return .Enum("", v)`) + len(importNames[payloadPath]) + len(t.Name)
	constants := make([]jen.Code, len(t.Values))
	for i, v := range t.Values {
		length += len(", ") + len(v.GoName)
		constants[i] = jen.Id(v.GoName)
	}
	call := jen.Qual(payloadPath, "Enum")
	if length <= commentWidth {
		return call.Call(append([]jen.Code{jen.Lit(t.Name), jen.Id("v")}, constants...)...)
	}
	return call.Custom(callLines(strconv.Quote(t.Name), "v"), constants...)
}
