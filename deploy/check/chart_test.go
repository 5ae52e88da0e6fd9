package check

import (
	"encoding/base64"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	apps "k8s.io/api/apps/v1"
	autoscaling "k8s.io/api/autoscaling/v2"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/runtime"
	gatewayapi "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/yaml"

	"taskgate/gateway/config"
)

const chartDir = "../chart"

var update = flag.Bool("update", false, "write what the chart renders to testdata/chart")

// valuesOf are those of testdata/chart.
func valuesOf(t *testing.T, variant string) string {
	t.Helper()
	text, err := os.ReadFile("testdata/chart/" + variant + ".values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// render is what "helm template" prints, by file.
func render(t *testing.T, values string) (map[string]string, error) {
	t.Helper()
	chart, err := loader.Load(chartDir)
	if err != nil {
		t.Fatal(err)
	}
	given, err := chartutil.ReadValues([]byte(values))
	if err != nil {
		t.Fatal(err)
	}
	all, err := chartutil.ToRenderValues(chart, given, chartutil.ReleaseOptions{Name: "gate", Namespace: "tools", IsInstall: true}, nil)
	if err != nil {
		return nil, err
	}
	files, err := engine.Render(chart, all)
	maps.DeleteFunc(files, func(_, text string) bool { return strings.TrimSpace(text) == "" })
	return files, err
}

// install renders a variant of testdata/chart and has a cluster read it.
func install(t *testing.T, variant string) []runtime.Object {
	t.Helper()
	files, err := render(t, valuesOf(t, variant))
	if err != nil {
		t.Fatal(err)
	}
	return admit(t, files)
}

// TestChartVariants: helm has nothing against the chart but that it has no picture, a cluster takes what it renders,
// the gateway takes its configuration, and a change of it is seen ("go test -update" writes the renderings).
func TestChartVariants(t *testing.T) {
	files, err := filepath.Glob("testdata/chart/*.values.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("the variants are %q, %v", files, err)
	}
	for _, file := range files {
		variant := strings.TrimSuffix(filepath.Base(file), ".values.yaml")
		t.Run(variant, func(t *testing.T) {
			given, err := chartutil.ReadValues([]byte(valuesOf(t, variant)))
			if err != nil {
				t.Fatal(err)
			}
			linter := lint.All(chartDir, given, "tools", true)
			for _, m := range linter.Messages {
				if m.Severity > support.InfoSev {
					t.Error(m)
				}
			}
			rendered, err := render(t, valuesOf(t, variant))
			if err != nil {
				t.Fatal(err)
			}
			readConfig(t, admit(t, rendered))
			var text strings.Builder
			for _, name := range slices.Sorted(maps.Keys(rendered)) {
				fmt.Fprintf(&text, "---\n# Source: %s\n%s\n", name, strings.TrimSpace(rendered[name]))
			}
			golden := "testdata/chart/" + variant + ".yaml"
			if *update {
				if err := os.WriteFile(golden, []byte(text.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if want, err := os.ReadFile(golden); err != nil || string(want) != text.String() {
				t.Errorf("%v; %s is not what is rendered:\n%s", err, golden, text.String())
			}
		})
	}
}

// TestChartWithRedis: the pods have their secrets and files, memory, and time to stop, and the probes ask what they should.
func TestChartWithRedis(t *testing.T) {
	objects := install(t, "redis")
	deployment, budget := pick[*apps.Deployment](t, objects), pick[*policy.PodDisruptionBudget](t, objects)
	pod := deployment.Spec.Template.Spec
	gate := pod.Containers[0]
	secrets := map[string]string{}
	for _, v := range gate.Env {
		if v.Value != "" || v.ValueFrom == nil || v.ValueFrom.SecretKeyRef == nil {
			t.Errorf("%s is no reference to a secret", v.Name)
			continue
		}
		secrets[v.Name] = v.ValueFrom.SecretKeyRef.Name + "/" + v.ValueFrom.SecretKeyRef.Key
	}
	if want := map[string]string{
		"REDIS_URL": "taskgate/url", "STATE_KEY_1": "taskgate/state-key", "STATE_KEY_2": "taskgate/next", "TOKEN": "mcp-server/token",
	}; !maps.Equal(secrets, want) {
		t.Errorf("the secrets are %v", secrets)
	}
	c := readConfig(t, objects)
	if c.Store != "redis://redis:6379" || len(c.StateKeys) != 2 || len(c.Upstreams) != 1 {
		t.Errorf("the store is %s, with %d keys and %d upstreams", c.Store, len(c.StateKeys), len(c.Upstreams))
	}
	if got, want := time.Duration(*pod.TerminationGracePeriodSeconds)*time.Second, c.DrainDelay+c.DrainTimeout+10*time.Second; got < want {
		t.Errorf("a pod has %v to stop, and needs %v", got, want)
	}
	// docs/operations.md, "Memory"; a process has 4000 calls besides.
	got := gate.Resources.Limits.Memory().Value()
	if want := int64(3*c.BytesInFlight(got*9/10) + 60*config.MiB + 4000*50_000); got < want {
		t.Errorf("a pod has %d bytes of memory, and needs %d", got, want)
	}
	if *deployment.Spec.Replicas != 3 || budget.Spec.MaxUnavailable.IntValue() != 1 || gate.Image != "registry.example.com/taskgate:v0.1.0" {
		t.Errorf("%d replicas, at most %v away, of %s", *deployment.Spec.Replicas, budget.Spec.MaxUnavailable, gate.Image)
	}
	replicas := deployment.Spec.Selector.MatchLabels
	if !maps.Equal(budget.Spec.Selector.MatchLabels, replicas) {
		t.Errorf("the budget is for %v, the pods are %v", budget.Spec.Selector, replicas)
	}
	var spread []string
	for _, c := range pod.TopologySpreadConstraints {
		if !maps.Equal(c.LabelSelector.MatchLabels, replicas) {
			t.Errorf("%s spreads %v, the pods are %v", c.TopologyKey, c.LabelSelector, replicas)
		}
		spread = append(spread, c.TopologyKey)
	}
	if !slices.Equal(spread, []string{core.LabelHostname, core.LabelTopologyZone}) {
		t.Errorf("replicas are spread over %q", spread)
	}
	if n := len(pod.Volumes); n != 2 || pod.Volumes[1].Secret.SecretName != "taskgate-files" || len(gate.VolumeMounts) != 2 || gate.VolumeMounts[1].MountPath != "/etc/secrets" {
		t.Errorf("the files are %v at %v", pod.Volumes, gate.VolumeMounts)
	}
	ports := map[string]string{}
	for _, p := range gate.Ports {
		ports[p.Name] = fmt.Sprintf(":%d", p.ContainerPort)
	}
	if ports["mcp"] != c.Listen || ports["admin"] != c.Admin {
		t.Errorf("the ports are %v, the configuration has %s and %s", ports, c.Listen, c.Admin)
	}
	for probe, path := range map[*core.Probe]string{
		gate.StartupProbe: "/readyz", gate.ReadinessProbe: "/readyz?exclude=store&exclude=upstreams", gate.LivenessProbe: "/healthz",
	} {
		if probe == nil || probe.HTTPGet.Path != path || probe.HTTPGet.Port.StrVal != "admin" {
			t.Errorf("a probe asks %v, not %s", probe, path)
		}
	}
}

// TestChartWithEverything: what has replicas of its own, what routes lead to, and who may connect.
func TestChartWithEverything(t *testing.T) {
	objects := install(t, "everything")
	deployment, scaler := pick[*apps.Deployment](t, objects), pick[*autoscaling.HorizontalPodAutoscaler](t, objects)
	pod := deployment.Spec.Template.Spec
	if deployment.Spec.Replicas != nil || scaler.Spec.ScaleTargetRef.Name != deployment.Name || len(all[*policy.PodDisruptionBudget](objects)) != 1 {
		t.Errorf("%v replicas beside %v", deployment.Spec.Replicas, scaler.Spec)
	}
	if account := pick[*core.ServiceAccount](t, objects); pod.ServiceAccountName != account.Name || *pod.AutomountServiceAccountToken {
		t.Errorf("the pods are %s, the account is %s", pod.ServiceAccountName, account.Name)
	}
	c := readConfig(t, objects)
	if !strings.HasPrefix(c.Store, "redis+sentinel://") || len(c.StateKeys) != 2 {
		t.Errorf("the store is %s, with %d keys", c.Store, len(c.StateKeys))
	}
	clients := all[*core.Service](objects)[0]
	ingress, route := pick[*networking.Ingress](t, objects), pick[*gatewayapi.HTTPRoute](t, objects)
	if len(ingress.Spec.Rules) != 2 {
		t.Errorf("the ingress has %v", ingress.Spec.Rules)
	}
	for _, rule := range ingress.Spec.Rules {
		if to := rule.HTTP.Paths[0].Backend.Service; to.Name != clients.Name || to.Port.Name != clients.Spec.Ports[0].Name {
			t.Errorf("%s leads to %v", rule.Host, to)
		}
	}
	if to := route.Spec.Rules[0].BackendRefs[0]; string(to.Name) != clients.Name || *to.Port != clients.Spec.Ports[0].Port {
		t.Errorf("the route leads to %v", to)
	}
	if limits := route.Spec.Rules[0].Timeouts; *limits.Request != "0s" || *limits.BackendRequest != "0s" {
		t.Errorf("the route ends calls after %s and %s", *limits.Request, *limits.BackendRequest)
	}
	replicas := deployment.Spec.Selector.MatchLabels
	wall := pick[*networking.NetworkPolicy](t, objects)
	if !maps.Equal(wall.Spec.PodSelector.MatchLabels, replicas) || len(wall.Spec.Ingress) != 2 || len(wall.Spec.Egress) != 1 || len(wall.Spec.PolicyTypes) != 2 {
		t.Errorf("the policy is %v", wall.Spec)
	}
	for _, rule := range wall.Spec.Ingress {
		named := slices.ContainsFunc(pod.Containers[0].Ports, func(p core.ContainerPort) bool { return p.Name == rule.Ports[0].Port.StrVal })
		if !named || len(rule.From) != 1 {
			t.Errorf("%v may connect to %v", rule.From, rule.Ports[0].Port)
		}
	}
	checkMonitor(t, objects, replicas)
}

// checkMonitor: the ServiceMonitor finds the one service that has the port of metrics.
func checkMonitor(t *testing.T, objects []runtime.Object, pods map[string]string) {
	t.Helper()
	monitor := pick[*monitoring.ServiceMonitor](t, objects)
	found := 0
	for _, service := range all[*core.Service](objects) {
		if !maps.Equal(service.Spec.Selector, pods) {
			t.Errorf("%s sends to %v", service.Name, service.Spec.Selector)
		}
		selected := true
		for k, v := range monitor.Spec.Selector.MatchLabels {
			selected = selected && service.Labels[k] == v
		}
		has := slices.ContainsFunc(service.Spec.Ports, func(p core.ServicePort) bool { return p.Name == monitor.Spec.Endpoints[0].Port })
		if selected != has {
			t.Errorf("%s: selected %t, has the port %t", service.Name, selected, has)
		}
		if selected {
			found++
		}
	}
	if found != 1 {
		t.Errorf("the monitor finds %d services", found)
	}
}

// TestChartHasAlerts: the alerts are those of examples/observability, for whichever Prometheus looks for this label.
func TestChartHasAlerts(t *testing.T) {
	files, err := render(t, valuesOf(t, "default")+"prometheusRule: {enabled: true, labels: {release: prometheus}}\n")
	if err != nil {
		t.Fatal(err)
	}
	rule := pick[*monitoring.PrometheusRule](t, admit(t, files))
	text, err := os.ReadFile("../../examples/observability/prometheus/taskgate.rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var want monitoring.PrometheusRuleSpec
	if err := yaml.UnmarshalStrict(text, &want); err != nil {
		t.Fatal(err)
	}
	if len(want.Groups) == 0 || !reflect.DeepEqual(rule.Spec, want) || rule.Labels["release"] != "prometheus" {
		t.Errorf("the alerts are %v", rule)
	}
}

// TestChartByDefault: one replica keeps its tasks in memory, and nothing asks for more than a cluster has by itself.
func TestChartByDefault(t *testing.T) {
	objects := install(t, "default")
	if c := readConfig(t, objects); c.Store != config.StoreEmbedded {
		t.Errorf("the store is %s", c.Store)
	}
	if len(objects) != 4 {
		t.Errorf("there are %d objects beside a deployment, its configuration and two services", len(objects)-4)
	}
}

// TestChartWithFolder: one replica has its tasks on a volume that its user can write, below where it is mounted.
func TestChartWithFolder(t *testing.T) {
	objects := install(t, "folder")
	set := pick[*apps.StatefulSet](t, objects)
	claim, pod := set.Spec.VolumeClaimTemplates[0], set.Spec.Template.Spec
	mounts := pod.Containers[0].VolumeMounts
	mount := slices.IndexFunc(mounts, func(m core.VolumeMount) bool { return m.Name == claim.Name })
	if c := readConfig(t, objects); mount < 0 || mounts[mount].ReadOnly || !strings.HasPrefix(c.Store, "file:"+mounts[mount].MountPath+"/") {
		t.Errorf("the store is %s, the volumes are %v", c.Store, mounts)
	}
	if *set.Spec.Replicas != 1 || pod.SecurityContext.FSGroup == nil || claim.Spec.Resources.Requests.Storage().String() != "5Gi" {
		t.Errorf("%d replicas, of the group %v, with %v", *set.Spec.Replicas, pod.SecurityContext.FSGroup, claim.Spec.Resources)
	}
	if service := set.Spec.ServiceName; !slices.ContainsFunc(all[*core.Service](objects), func(s *core.Service) bool { return s.Name == service && s.Spec.ClusterIP == core.ClusterIPNone }) {
		t.Errorf("%s is no headless service", service)
	}
}

// TestChartRefuses: a value that does not exist, and values that contradict each other, are no installation.
func TestChartRefuses(t *testing.T) {
	const one = "image: {repository: r}\n"
	for given, want := range map[string]string{
		"replicas: 1":                                                "where is the image?",
		one + "replica: 2":                                           "'replica' not allowed",
		one + "redis: {secrets: taskgate}":                           "'secrets' not allowed",
		one + "service: {type: Loadbalancer}":                        "/service/type",
		one + "replicas: two":                                        "/replicas",
		one + "config: {upstream: []}":                               "'upstream' not allowed",
		one + "config: {upstreams: [{nam: mcp}]}":                    "'nam' not allowed",
		one + "config: {listen: ':80'}":                              "config.listen is set by the chart",
		one + "config: {admin: ':80'}":                               "config.admin is set by the chart",
		one + "replicas: 2":                                          "set redis.secret",
		one + "autoscaling: {enabled: true}":                         "set redis.secret",
		one + "replicas: 2\nconfig: {store: embedded}":               "set redis.secret",
		one + "replicas: 2\npersistence: {enabled: true}":            "set redis.secret",
		one + "config: {store: 'file:/tasks'}":                       "set persistence.enabled",
		one + "redis: {secret: s}\nconfig: {store: 'redis://redis'}": "set one of them",
		one + "redis: {secret: s}\npersistence: {enabled: true}":     "set one of them",
		one + "redis: {secret: s}\nconfig: {state_keys: [a]}":        "empty one of them",
		one + "httpRoute: {enabled: true}":                           "which gateway",
	} {
		if _, err := render(t, given); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", given, err, want)
		}
	}
}

// readConfig reads the configuration as a pod would, that has some value for each variable of the Secret.
func readConfig(t *testing.T, objects []runtime.Object) *config.Config {
	t.Helper()
	text := pick[*core.ConfigMap](t, objects).Data["taskgate.yaml"]
	t.Setenv("REDIS_URL", "redis://redis:6379")
	for _, name := range []string{"STATE_KEY_1", "STATE_KEY_2", "STATE_KEY_NEW", "STATE_KEY_OLD"} {
		t.Setenv(name, base64.StdEncoding.EncodeToString(random()))
	}
	for _, name := range []string{"TOKEN", "REDIS_PASSWORD"} {
		t.Setenv(name, "secret")
	}
	file := filepath.Join(t.TempDir(), "taskgate.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := config.Load(file)
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return c
}
