package config

import (
	"fmt"

	"github.com/seed-a29ca62a/cortex"
	"go.yaml.in/yaml/v3"
)

// Decisions is the port of the decision service, for programs that make their calls themselves.
type Decisions struct {
	Listen    string // host:port; beyond the loopback interface only with a TokenFile or a TLS.ClientCA
	TokenFile string // whose content, without the space around it, is the bearer token that requests must carry; empty = none
	TLS       *TLS   // nil = plain text

	Create     bool // targets that nobody has configured are made when they are first asked for; false: they are refused
	MaxTargets int  // of those
	MaxTokens  int  // attempts that are admitted and not yet reported
	MaxWatches int  // streams of changes that are open

	// Template is what the engines of targets that are made are configured with, as [cortex.Config.WithDefaults] returned it, without a name
	// and without functions.
	Template cortex.Config
}

func newDecisions() *Decisions {
	return &Decisions{Listen: "127.0.0.1:9096", Create: true, MaxTargets: cortex.DefaultRegistryLimit, MaxTokens: 100_000, MaxWatches: 64}
}

func (c *Decisions) block() block {
	return block{
		{key: "listen", value: address(&c.Listen)},
		{key: "token_file", value: file(&c.TokenFile)},
		{key: "tls", value: optional[TLS]{&c.TLS, newTLS, (*TLS).block}},
		{key: "unknown", value: choice[bool]{&c.Create, []bool{true, false}, unknownName}},
		{key: "max_targets", value: count{&c.MaxTargets, 1, 100_000}},
		{key: "max_tokens", value: count{&c.MaxTokens, 1, 10_000_000}},
		{key: "max_watches", value: count{&c.MaxWatches, 1, 10_000}},
		{key: "template", value: template{&c.Template}},
	}
}

func unknownName(create bool) string {
	if create {
		return "create"
	}
	return "refuse"
}

// template is the configuration of engines that are made later. Its keys are those of a target that are the engine's.
type template struct{ p *cortex.Config }

func (v template) kind() string { return "a block of a target's keys, from `profile` to `remote`" }

func (v template) read(d *decoder, n *yaml.Node, at place) { engineBlock(v.p, nil).read(d, n, at) }

func (v template) write() *yaml.Node { return engineBlock(v.p, nil).write() }

// decisions checks the block against the rest of the file.
func (d *decoder) decisions(f *File) {
	c := f.Decisions
	if c == nil {
		return
	}
	const at = "decisions.listen"
	d.guarded("decisions", c.Listen, c.TokenFile, c.TLS, "127.0.0.1:9096")
	d.serverTLS(c.TLS, "decisions.tls")
	d.engine(&c.Template, "", engineBlock(&c.Template, nil), "decisions.template")
	if len(f.Targets) == 0 && !d.Refused["targets"] {
		if d.Given("routes") {
			d.Problem(d.At("routes"), "without targets: want targets, or no routes either")
		}
		if !c.Create {
			d.Problem(d.At("decisions.unknown"), "refuse: there are no targets that would not be: want targets, or create")
		}
	}
	if d.Refused[at] {
		return
	}
	if len(f.Targets) > 0 && !d.Refused["listen"] && clash(f.Listen, c.Listen) {
		d.Problem(d.At(at), "%s: the same port as listen, %s: want another", c.Listen, f.Listen)
	} else if f.Admin.Enabled && !d.Refused["admin.listen"] && !d.Refused["admin.enabled"] && clash(f.Admin.Listen, c.Listen) {
		d.Problem(d.At(at), "%s: the same port as admin.listen, %s: want another", c.Listen, f.Admin.Listen)
	}
	for i := range f.Targets {
		for j, e := range f.Targets[i].Endpoints {
			if u := e.URL; u != nil && loopbackHost(u.Hostname()) && clash(c.Listen, hostPort(u)) {
				d.Problem(d.At(fmt.Sprintf("targets.%s.endpoints[%d]", show(f.Targets[i].Name), j)),
					"%s: the decision service, which listens on %s: want the address of the service", show(u.String()), c.Listen)
			}
		}
	}
}
