package emit

import (
	"github.com/dave/jennifer/jen"

	"github.com/outboxgen/outboxgen/generator/model"
)

func allTopics(m *model.Model) []*model.Topic {
	var topics []*model.Topic
	for _, ns := range m.Namespaces {
		topics = append(topics, ns.Topics...)
	}
	return topics
}

// mask renders the file of the function that masks the payloads of topics.
func (e *emitter) mask(topics []*model.Topic) ([]byte, error) {
	f := e.newFile("masking of payloads")
	g := f.Group
	name := model.MaskPayload
	addComment(g,
		name+" returns the payload of an event of \"namespace/topic\" as people may see it, with \"[masked]\" in place of "+
			"sensitive values and of what the payload's type does not describe. It returns false for topics of other "+
			"packages, and if the payload is not JSON. A payload of another version is masked as one of the present version. "+
			"Pass it to dashboard.Config as Mask.")
	ties := make([]jen.Code, len(topics))
	for i, t := range topics {
		ties[i] = untypedTopic(t)
	}
	raw := func() *jen.Statement { return jen.Qual(jsonPath, "RawMessage") }
	g.Func().Id(name).
		Params(jen.Id("topic").String(), jen.Id("_").Int(), jen.Id("payload").Add(raw())).
		Params(raw(), jen.Bool()).
		Block(jen.Return(jen.Qual(outboxPath, name).Custom(callLines("topic", "payload"), ties...)))
	g.Line()
	return render(f)
}
