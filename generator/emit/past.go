package emit

import (
	"strconv"

	"github.com/dave/jennifer/jen"

	"github.com/outboxgen/outboxgen/generator/model"
)

// past renders the file of an older version of a topic: its payload, and the shared types that were different. Events
// of the version are only decoded, so that nothing here enqueues or validates.
func (e *emitter) past(t *model.Topic, p *model.Past) ([]byte, error) {
	version := "version " + strconv.Itoa(p.Version)
	f := e.newFile(version + " of topic " + t.FullName())
	g := f.Group
	addComment(g, p.GoName+" is "+version+" of the payload of "+t.FullName()+
		". When an event of that version is delivered, a function that you write in this package turns its payload into "+
		"that of the next version:")
	g.Comment("//")
	g.Comment("//\tfunc " + p.Upcaster() + "(old " + p.GoName + ") (" + t.Next(p) + ", error)")
	g.Comment("//")
	addComment(g, "Its error makes the event a dead letter. It must not depend on anything but its argument, because it "+
		"also runs when an event is delivered again.")
	g.Type().Id(p.GoName).StructFunc(func(g *jen.Group) { e.addMembers(g, p.Fields) })
	g.Line()
	e.addPayloadMasking(g, p.GoName, p.Fields, p.Sealed)
	for _, own := range p.Types {
		switch {
		case own.IsEnum():
			e.addEnum(g, own)
		case own.Scalar != nil:
			e.addScalar(g, own)
		default:
			e.addStruct(g, own.GoName, "the shared type "+own.Name+" as "+p.GoName+" has it", own.Doc, own.Fields)
			e.addMasking(g, "v", own.GoName, own.Fields)
		}
	}
	return render(f)
}

// history is the member of a TopicSpec with the steps from older versions. Their types are written, not inferred, so
// that a function of another type does not compile.
func history(t *model.Topic) []member {
	if len(t.History) == 0 {
		return nil
	}
	steps := make([]jen.Code, len(t.History))
	for i, p := range t.History {
		steps[i] = jen.Qual(payloadPath, "Upcast").Types(jen.Id(p.GoName), jen.Id(t.Next(p))).Call(jen.Lit(p.Version),
			jen.Id(p.Upcaster()))
		if p.Sealed {
			steps[i] = jen.Add(steps[i]).Dot("Sealed").Call()
		}
	}
	return []member{
		{"History", jen.Index().Qual(payloadPath, "Upcaster").Custom(jen.Options{
			Open: "{", Close: "}", Separator: ",", Multi: true,
		}, steps...)},
	}
}
