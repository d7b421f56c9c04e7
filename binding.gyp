{
  "targets": [
    {
      "target_name": "kv_transceiver",
      "type": "none",
      "actions": [
        {
          "action_name": "cmake",
          "inputs": ["CMakeLists.txt"],
          "outputs": ["<(PRODUCT_DIR)/always-run"],
          "action": ["node", "scripts/build-addon.cjs", "--out", "<(PRODUCT_DIR)"]
        }
      ]
    }
  ]
}
