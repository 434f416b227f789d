package emit

import (
	"strconv"

	"github.com/dave/jennifer/jen"

	"github.com/outboxgen/outboxgen/generator/model"
)

// sharedTypes renders the file of types, which payloads share.
func (e *emitter) sharedTypes(types []*model.Type) ([]byte, error) {
	f := e.newFile("types")
	for _, t := range types {
		if t.IsEnum() {
			e.addEnum(f.Group, t)
		} else {
			e.addSharedStruct(f.Group, t)
		}
	}
	return render(f)
}

func (e *emitter) addSharedStruct(g *jen.Group, t *model.Type) {
	e.addStruct(g, t.GoName, typeDoc(t.GoName, "the shared type "+t.Name, t.Doc), t.Fields)
	e.addPatterns(g, t.GoName, t.Fields)
	e.addValidate(g, "v", t.GoName, t.Name, t.Fields)
	e.addMasking(g, "v", t.GoName, t.Fields)
}

// addEnum declares an enum: a string type, its constants in YAML order and their check.
func (e *emitter) addEnum(g *jen.Group, t *model.Type) {
	addComment(g, typeDoc(t.GoName, "the shared type "+t.Name, t.Doc))
	g.Type().Id(t.GoName).String()
	g.Line()
	addComment(g, "The values of "+t.GoName+".")
	g.Const().DefsFunc(func(g *jen.Group) {
		for _, v := range t.Values {
			g.Id(v.GoName).Id(t.GoName).Op("=").Lit(v.Value)
		}
	})
	g.Line()

	addComment(g, "Validate returns nil for the constants of "+t.GoName+", else "+e.validationError()+".")
	g.Func().Params(jen.Id("v").Id(t.GoName)).Id("Validate").Params().Error().Block(jen.Return(e.enumCall(t)))
	g.Line()
}

// enumCall keeps short enums on one line.
func (e *emitter) enumCall(t *model.Type) *jen.Statement {
	length := len(`        return .Enum("", v)`) + len(importNames[e.lib]) + len(t.Name)
	constants := make([]jen.Code, len(t.Values))
	for i, v := range t.Values {
		length += len(", ") + len(v.GoName)
		constants[i] = jen.Id(v.GoName)
	}
	call := jen.Qual(e.lib, "Enum")
	if length <= commentWidth {
		return call.Call(append([]jen.Code{jen.Lit(t.Name), jen.Id("v")}, constants...)...)
	}
	return call.Custom(callLines(strconv.Quote(t.Name), "v"), constants...)
}
