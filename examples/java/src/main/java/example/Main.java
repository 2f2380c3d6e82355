package example;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/**
 * A client of Viewstamp in Java, made from the published protos with stock gRPC.
 *
 * <p>Each command is an example of its own: `login` and `topology` (Topology), `watch` (TopicWatch)
 * and `add-partitions` (Partitions, Submission). They print a JSON object on each line.
 */
public final class Main {
  private static final String USAGE =
      """
      usage: java -jar target/example.jar [FLAGS] COMMAND
        login                          log in
        topology STREAM TOPIC...       create what is missing, then list the topics
        watch STREAM FROM_REVISION     print every change of the topics, until Ctrl-C
        add-partitions STREAM TOPIC    add as many partitions as each line of the input says
      flags: --addresses (of all replicas, with commas between), --username, --password-file,
        --tls-ca (PEM file of the authority; no TLS without it)""";
  private static final Map<String, String> DEFAULTS =
      Map.of(
          "--addresses", "localhost:7400",
          "--username", "root",
          "--password-file", "data/root_password",
          "--tls-ca", "");

  private Main() {}

  /** Runs a command. */
  public static void main(String[] arguments) {
    Map<String, String> flags = new HashMap<>(DEFAULTS);
    List<String> words = new ArrayList<>(List.of(arguments));
    while (words.size() > 1 && DEFAULTS.containsKey(words.get(0))) {
      flags.put(words.remove(0), words.remove(0));
    }
    try {
      run(flags, words);
    } catch (Exception error) {
      System.err.println("example: " + error.getMessage());
      System.exit(1);
    }
  }

  private static void run(Map<String, String> flags, List<String> words) throws Exception {
    List<String> addresses = List.of(flags.get("--addresses").split(","));
    String password = Files.readString(Path.of(flags.get("--password-file"))).strip();
    try (Cluster cluster =
        new Cluster(addresses, flags.get("--username"), password, flags.get("--tls-ca"))) {
      command(cluster, words);
    }
  }

  private static void command(Cluster cluster, List<String> words) throws Exception {
    String name = words.isEmpty() ? "" : words.get(0);
    if (name.equals("login") && words.size() == 1) {
      Topology.logIn(cluster);
    } else if (name.equals("topology") && words.size() >= 2) {
      Topology.ensure(cluster, words.get(1), words.subList(2, words.size()));
    } else if (name.equals("watch") && words.size() == 3 && words.get(2).matches("[1-9]\\d*")) {
      new TopicWatch(cluster, words.get(1), Long.parseLong(words.get(2))).run();
    } else if (name.equals("add-partitions") && words.size() == 3) {
      Partitions.add(cluster, words.get(1), words.get(2));
    } else {
      throw new IllegalArgumentException(words + " is no command\n" + USAGE);
    }
  }
}
